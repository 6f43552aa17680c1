package history

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
)

// generator makes a run that is correct, as a relay and a consumer by the rules would leave it: with COMMITs of unknown
// outcome, repeated sends, refused and parked events, skipped effects, a release and a discard.
type generator struct {
	*rand.Rand
	in       Input
	producer *Process
	relay    *Process
	worker   *Process
	versions map[string]int64
	waiting  [lanes][]int // committed events, by lane, in order of id
	seqs     [lanes]int64
	parked   map[string]bool // keys, as tenant/topic/key
	logs     map[End]([]Record)
	at       time.Time
	number   int64
}

const (
	lanes      = 8
	partitions = 3
	epoch      = "11111111-1111-7111-8111-111111111111.1"
)

var (
	topics    = []string{"orders", "payments"}
	consumers = []string{"ledger", "email"}
	now       = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
)

func generate(seed uint64, events int) Input {
	g := &generator{
		Rand: rand.New(rand.NewPCG(seed, 1)), versions: map[string]int64{}, parked: map[string]bool{},
		logs: map[End][]Record{}, at: now.Add(-time.Hour),
	}
	g.in.Histories = []Process{{File: "producer"}, {File: "relay"}, {File: "worker"}, {File: "audit"}}
	g.producer, g.relay, g.worker = &g.in.Histories[0], &g.in.Histories[1], &g.in.Histories[2]
	d := &g.in.Dump
	d.Now, d.DroppedBefore = now, now.AddDate(0, 0, -20).Truncate(24*time.Hour)
	for lane := range int16(lanes) {
		g.write(g.relay, Entry{Kind: KindLaneTaken, Lane: lane, Fence: 4})
		d.Lanes = append(d.Lanes, Lane{Lane: lane, Fence: 4})
	}
	for _, name := range consumers {
		d.Consumers = append(d.Consumers, Consumer{Name: name, Topics: topics, WindowDays: 14})
	}
	g.note(KindFault, "kill")
	for len(d.Business) < events {
		g.append()
		if g.IntN(4) == 0 {
			g.publish(int16(g.IntN(lanes)))
		}
	}
	g.note(KindFaultEnded, "kill")
	for lane := range int16(lanes) {
		for len(g.waiting[lane]) > 0 {
			g.publish(lane)
		}
	}
	g.consume()
	return g.in
}

func (g *generator) write(p *Process, e Entry) int64 {
	g.at = g.at.Add(time.Millisecond)
	e.N, e.At, e.Process = int64(len(p.Entries))+1, g.at, p.File
	p.Entries = append(p.Entries, e)
	return e.N
}

func (g *generator) note(kind Kind, verb string) { g.write(g.producer, Entry{Kind: kind, Verb: verb}) }

func (g *generator) id() uuid.UUID {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:], uint64(g.at.UnixMilli())<<16)
	binary.BigEndian.PutUint64(id[8:], g.Uint64())
	id[6], id[8] = 0x70|id[6]&0x0f, 0x80|id[8]&0x3f
	return id
}

// append is a transaction of one to three events: committed, rolled back, or nobody knows.
func (g *generator) append() {
	events := make([]Event, 1+g.IntN(3))
	for i := range events {
		e := Event{ID: g.id(), Tenant: "acme", Topic: topics[g.IntN(2)], Version: 1, Digest: int64(g.Uint64() | 1)}
		if g.IntN(8) > 0 {
			e.Key = fmt.Sprintf("key-%d", g.IntN(6+len(g.in.Dump.Business)/50))
			g.versions[e.Key]++
			e.Version = g.versions[e.Key]
		}
		e.Business = e.ID.String()
		switch g.IntN(25) {
		case 0:
			e.Poison = "broker"
		case 1:
			e.Poison = "effect"
		case 2:
			e.Skipped = true
		case 3:
			e.Scheduled = true
		}
		events[i] = e
	}
	op := g.write(g.producer, Entry{Kind: KindAppend, Events: events})
	outcome, there := OK, true
	switch g.IntN(12) {
	case 0:
		outcome, there = Failed, false
	case 1:
		outcome, there = Unknown, g.IntN(2) == 0
	}
	if outcome != Unknown || g.IntN(2) == 0 { // or the process died
		g.write(g.producer, Entry{Kind: KindAppended, Op: op, Outcome: outcome})
	}
	if !there {
		return
	}
	for _, e := range events {
		lane := 0
		for _, b := range []byte(e.Key + string(e.ID[:min(len(e.ID), 16*(1-min(1, len(e.Key))))])) {
			lane += int(b)
		}
		g.waiting[lane%lanes] = append(g.waiting[lane%lanes], len(g.in.Dump.Business))
		g.in.Dump.Business = append(g.in.Dump.Business, e)
	}
}

// publish claims some events of a lane, sends them, perhaps twice, and parks what is refused.
func (g *generator) publish(lane int16) {
	n := min(len(g.waiting[lane]), 1+g.IntN(8))
	if n == 0 {
		return
	}
	var sent []Sent
	var refused []Refused
	var records []Record
	for _, i := range g.waiting[lane][:n] {
		e := &g.in.Dump.Business[i]
		g.number++
		row := Row{Place: PlaceParked, Lane: lane, Number: g.number, ID: e.ID}
		mark := e.Tenant + "/" + e.Topic + "/" + e.Key
		if e.Key != "" && g.parked[mark] {
			g.in.Dump.Rows = append(g.in.Dump.Rows, row)
			continue
		}
		g.seqs[lane] += 1 + int64(g.IntN(20)/19*5) // gaps are legal
		s := Sent{ID: e.ID, Lane: lane, Seq: g.seqs[lane]}
		if len(sent) == 0 {
			s.Epoch = epoch
		}
		sent = append(sent, s)
		if e.Poison == "broker" {
			refused = append(refused, Refused{ID: e.ID, Err: "too large", Certain: true})
			row.Refused, row.Code = true, "MESSAGE_TOO_LARGE"
			g.in.Dump.Rows = append(g.in.Dump.Rows, row)
			if e.Key != "" {
				g.parked[mark] = true
			}
			continue
		}
		records = append(records, Record{
			Topic: e.Topic, Partition: partition(e), ID: e.ID, Tenant: e.Tenant, Key: e.Key, Epoch: epoch, Lane: lane,
			Seq: s.Seq, Version: e.Version, Digest: e.Digest,
		})
	}
	g.waiting[lane] = g.waiting[lane][n:]
	for again := true; again; again = g.IntN(5) == 0 { // an answer may be lost; the same events are sent again
		op := g.write(g.relay, Entry{Kind: KindPublish, Sent: sent})
		g.write(g.relay, Entry{Kind: KindPublished, Op: op, Outcome: OK, Refused: refused})
		for _, r := range records {
			at := End{Topic: r.Topic, Partition: r.Partition}
			r.Offset = int64(len(g.logs[at]))
			g.logs[at] = append(g.logs[at], r)
		}
	}
}

func partition(e *Event) int32 {
	if e.Key == "" {
		return int32(e.ID[15]) % partitions
	}
	return int32(e.Key[len(e.Key)-1]) % partitions
}

// consume lets every consumer read all that there is.
func (g *generator) consume() {
	d := &g.in.Dump
	index := make(map[uuid.UUID]int, len(d.Business))
	for i := range d.Business {
		index[d.Business[i].ID] = i
	}
	places := make([]End, 0, len(g.logs))
	for at := range g.logs {
		places = append(places, at)
	}
	slices.SortFunc(places, func(a, b End) int {
		return slices.Compare([]byte(fmt.Sprint(a.Topic, a.Partition)), []byte(fmt.Sprint(b.Topic, b.Partition)))
	})
	for _, at := range places {
		log := g.logs[at]
		d.Records = append(d.Records, log...)
		d.Ends = append(d.Ends, End{at.Topic, at.Partition, 0, int64(len(log))})
		for _, name := range consumers {
			g.read(name, at, log, index)
		}
	}
	for k, n := range g.lists(PlaceParked) {
		d.Keys = append(d.Keys, ParkedKey{Tenant: k.tenant, Topic: k.topic, Key: k.key, Waiting: n})
	}
}

func (g *generator) read(consumer string, at End, log []Record, index map[uuid.UUID]int) {
	d := &g.in.Dump
	d.Offsets = append(d.Offsets, Offset{consumer, at.Topic, at.Partition, int64(len(log))})
	known, marks := map[uuid.UUID]bool{}, map[string]int64{}
	for len(log) > 0 {
		n := min(len(log), 1+g.IntN(10))
		begin := Entry{
			Kind: KindHandle, Consumer: consumer, Topic: at.Topic, Partition: at.Partition,
			Offset: log[0].Offset, Count: n,
		}
		end := Entry{Kind: KindHandled, Outcome: OK}
		for _, rec := range log[:n] {
			begin.IDs = append(begin.IDs, rec.ID)
			end.Outcomes = append(end.Outcomes, g.decide(consumer, &rec, &d.Business[index[rec.ID]], known, marks))
		}
		end.Op = g.write(g.worker, begin)
		g.write(g.worker, end)
		audit := Audit{Consumer: consumer, Partitions: []AuditPartition{
			{Topic: at.Topic, Partition: at.Partition, Committed: log[n-1].Offset + 1, Checked: int64(n)},
		}}
		g.write(&g.in.Histories[3], Entry{Kind: KindAudit, Audit: &audit})
		log = log[n:]
	}
	for key, n := range marks {
		d.InboxKeys = append(d.InboxKeys, InboxKey{Consumer: consumer, Topic: at.Topic, Key: key, Waiting: n})
	}
}

func (g *generator) decide(consumer string, rec *Record, e *Event, known map[uuid.UUID]bool,
	marks map[string]int64,
) string {
	d := &g.in.Dump
	if known[e.ID] {
		return "duplicate"
	}
	known[e.ID] = true
	switch {
	case e.Key != "" && marks[e.Key] > 0:
		marks[e.Key]++
		d.InboxParked = append(d.InboxParked, InboxParked{Consumer: consumer, ID: e.ID, Kind: "behind"})
		return "parked"
	case e.Poison == "effect" && g.IntN(4) == 0: // and a person gave it up
		d.Inbox = append(d.Inbox, InboxRow{Consumer: consumer, ID: e.ID, Status: "discarded"})
		return "parked"
	case e.Poison == "effect":
		if e.Key != "" {
			marks[e.Key]++
		}
		d.InboxParked = append(d.InboxParked, InboxParked{
			Consumer: consumer, ID: e.ID, Kind: "failed", Code: "broken",
			Alone: e.Key == "",
		})
		return "parked"
	}
	d.Inbox = append(d.Inbox, InboxRow{Consumer: consumer, ID: e.ID, Status: "done"})
	if e.Skipped {
		return "skipped"
	}
	d.Effects = append(d.Effects, Effect{
		Consumer: consumer, ID: e.ID, Version: e.Version, Business: e.Business,
		Partition: rec.Partition, Offset: rec.Offset,
	})
	d.Ledger = append(d.Ledger, Booking{consumer, e.Business, e.ID})
	return "applied"
}

// lists counts the rows of a place by key.
func (g *generator) lists(at Place) map[listKey]int64 {
	ids := map[uuid.UUID]*Event{}
	for i := range g.in.Dump.Business {
		ids[g.in.Dump.Business[i].ID] = &g.in.Dump.Business[i]
	}
	out := map[listKey]int64{}
	for _, row := range g.in.Dump.Rows {
		if e := ids[row.ID]; row.Place == at && e.Key != "" {
			out[listKey{e.Tenant, e.Topic, e.Key}]++
		}
	}
	return out
}
