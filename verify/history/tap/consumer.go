package tap

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/verify/history"
)

// Consumer returns an Observer that records assignments, committed offsets and halts.
func Consumer(w *history.Writer, group string) consumer.Observer {
	write := func(e history.Entry) { e.Group = group; _, _ = w.Write(e) }
	at := func(kind history.Kind, p consumer.Partition, offset int64) history.Entry {
		return history.Entry{Kind: kind, Topic: p.Topic, Partition: p.ID, Offset: offset}
	}
	return consumer.Observer{
		Assigned: func(a consumer.AssignedInfo) {
			write(history.Entry{
				Kind: history.KindAssigned, Generation: a.Generation, Detail: fmt.Sprint(a.Partitions),
			})
		},
		Committed: func(i consumer.CommittedInfo) { write(at(history.KindCommitted, i.Partition, i.Offset)) },
		Halted: func(h consumer.Halt) {
			e := at(history.KindHalted, h.Partition, h.Offset)
			e.IDs, e.Err = []uuid.UUID{h.EventID}, text(h.Err)
			write(e)
		},
		Forgotten: func(f consumer.ForgottenRange) {
			e := at(history.KindNote, f.Partition, f.From)
			e.Verb, e.Detail = history.VerbForgotten, fmt.Sprintf("%+v", f)
			write(e)
		},
		Lost: func(l consumer.LostRange) {
			e := at(history.KindNote, l.Partition, l.From)
			e.Verb, e.Detail = history.VerbLost, fmt.Sprintf("%+v", l)
			write(e)
		},
		Outage: func(o consumer.OutageInfo) {
			write(history.Entry{Kind: history.KindOutage, Detail: "kafka", Err: text(o.Err)})
		},
	}
}
