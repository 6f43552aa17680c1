package operator

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/audit"
)

// FoundEvent is what a consumer knows about an event, without its content.
type FoundEvent struct {
	Consumer string `json:"consumer"`
	// Where is "decided" (applied or skipped), "discarded" (by an operator), or the kind of a parked event: "failed",
	// "behind" or "quarantined".
	Where string    `json:"where"`
	At    time.Time `json:"at"` // since when
	Code  string    `json:"code,omitempty"`
	// The fields below are set only for parked events; ID is 0 otherwise.
	ID        int64     `json:"id"`
	MessageID uuid.UUID `json:"message_id"`
	Tenant    string    `json:"tenant"`
	Topic     string    `json:"topic"`
	Key       string    `json:"key"`
	Type      string    `json:"type"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
	Error     string    `json:"error,omitempty"`
}

// Found is the result of Find.
type Found struct {
	Events []FoundEvent `json:"events"`
	// Unsearched lists, one sentence each, what could not be searched because an index or a record is missing.
	Unsearched []string `json:"unsearched"`
}

// Limits of Find: the rows that it reads of each table, and the events that it returns for a key.
const (
	findRows = 10_000
	findMost = 100
)

// Trace returns what each consumer knows about a message id. It uses only indexes.
func (o *Operator) Trace(ctx context.Context, messageID uuid.UUID) ([]FoundEvent, error) {
	return o.found(ctx, sql.FindMessage, messageID.String())
}

// Find searches for events by a text: as a key, a message id and the id of a parked event, where the text has that
// form. It scans no whole table. Decided events are found by their message id only, within the consumer's window. Of an
// id that several events have, all are found: those after the first have ids of their own, derived from it.
func (o *Operator) Find(ctx context.Context, text string) (f Found, err error) {
	if text == "" {
		return f, nil
	}
	if f.Events, err = o.found(ctx, sql.FindKey, []byte(text), findRows, findMost); err != nil {
		return f, err
	}
	if len(f.Events) == findMost {
		f.Unsearched = append(f.Unsearched, "Of what is parked in the inbox, no more than "+strconv.Itoa(findMost)+
			" events of a key are shown: there may be more.")
	}
	more, err := audit.List(ctx, o.person, "looking for events", pgx.RowTo[bool], o.q(sql.FindMore), findRows)
	if err != nil {
		return f, err
	}
	if more[0] {
		f.Unsearched = append(f.Unsearched, "Of what is parked in the inbox, only the first "+strconv.Itoa(findRows)+
			" events were looked at for their key, of which there is no index.")
	}
	if id, parseErr := strconv.ParseInt(text, 10, 64); parseErr == nil && id > 0 {
		list, err := o.found(ctx, sql.FindParked, id)
		if err != nil {
			return f, err
		}
		f.Events = append(f.Events, list...)
	}
	defer func() {
		if err == nil && len(f.Events) == 0 {
			f.Unsearched = append(f.Unsearched, "An event of another producer has the hash of its source and id as "+
				"its message id: relay find --text ID --ce-source SOURCE computes it.")
		}
	}()
	id, parseErr := uuid.Parse(text)
	if parseErr != nil {
		f.Unsearched = append(f.Unsearched,
			"What was decided is found by its message id alone: the inbox remembers no keys.")
		return f, nil
	}
	list, err := o.Trace(ctx, id)
	if err != nil {
		return f, err
	}
	f.Events = append(f.Events, list...)
	if err := o.others(ctx, &f, id); err != nil {
		return f, err
	}
	none, err := audit.List(ctx, o.person, "looking for consumers", pgx.RowTo[string], o.q(sql.FindUnrecorded))
	if len(none) > 0 {
		f.Unsearched = append(f.Unsearched, "No record of single events is kept by "+strings.Join(none, ", ")+
			": these go by numbers or offsets.")
	}
	return f, err
}

// others adds the events whose id another event had before them: each is known under an id that is derived from it, and
// stands near it in the indexes, because it has its time.
func (o *Operator) others(ctx context.Context, f *Found, shared uuid.UUID) error {
	first := sql.OtherID(shared, 0)
	last := first
	clear(first[6:])
	copy(last[6:], uuid.Max[6:])
	type known struct {
		id      string
		content int64
	}
	list, err := audit.List(ctx, o.person, "looking for events", func(row pgx.CollectableRow) (k known, err error) {
		return k, row.Scan(&k.id, &k.content)
	}, o.q(sql.FindContents), first.String(), last.String(), findRows)
	for _, k := range list {
		if id := sql.OtherID(shared, k.content); err == nil && id.String() == k.id {
			var events []FoundEvent
			events, err = o.Trace(ctx, id)
			f.Events = append(f.Events, events...)
		}
	}
	if len(list) >= findRows {
		f.Unsearched = append(f.Unsearched, "Of what was set aside because another event had its id, only that among "+
			"the first "+strconv.Itoa(findRows)+" ids of the same millisecond was looked at.")
	}
	return err
}

func (o *Operator) found(ctx context.Context, statement string, args ...any) ([]FoundEvent, error) {
	return audit.List(ctx, o.person, "looking for events", func(row pgx.CollectableRow) (e FoundEvent, err error) {
		var id string
		var tenant, key []byte
		err = row.Scan(&e.Consumer, &e.Where, &e.At, &e.Code, &e.ID, &id, &tenant, &e.Topic, &key, &e.Type,
			&e.Partition, &e.Offset, &e.Error)
		if err == nil {
			e.MessageID, err = uuid.Parse(id)
		}
		e.Tenant, e.Key = string(tenant), string(key)
		return e, err
	}, o.q(statement), args...)
}
