package proof

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// open counts what must be zero in the end. The transaction of a killed producer may still be rolling back.
var open = map[string]string{
	"events in the outbox":    `select count(*) from outbox_event`,
	"scheduled events":        `select count(*) from outbox_scheduled`,
	"open journal entries":    `select count(*) from outbox_claim`,
	"held events":             `select count(*) from outbox_held`,
	"events the relay parked": `select count(*) from outbox_parked`,
	"keys the relay parked":   `select count(*) from outbox_parked_key`,
	"events the inbox parked": `select count(*) from inbox_parked`,
	"keys the inbox parked":   `select count(*) from inbox_parked_key`,
}

// undecided counts committed events without a trace at the consumer, by deduplication. By watermark a skipped event
// leaves none.
var undecided = map[string]string{
	"": `select count(*) from paid p where p.kind not in ('cancel', 'discard') and not exists (select
			from inbox_message m where m.message_id = p.id)
		and not exists (select from inbox_message_any a where a.message_id = p.id)`,
	byWatermark: `select count(*) from paid p where p.kind not in ('skip', 'cancel', 'discard', 'drop')
		and not exists (select from effect e where e.id = p.id)`,
}

// drained waits until nothing is open or undecided (liveness, I8).
func (c *cell) drained(t *testing.T) {
	t.Helper()
	began := time.Now()
	deadline := began.Add(2 * time.Minute)
	for {
		missing := ""
		all := maps.Clone(open)
		all["events that are not decided"] = undecided[c.dedup]
		for what, sql := range all {
			if n := pgtest.One[int](t, c.db, sql); n > 0 {
				missing += fmt.Sprintf("%d %s; ", n, what)
			}
		}
		if missing == "" {
			t.Logf("drained in %v", time.Since(began).Round(100*time.Millisecond))
			return
		}
		if time.Now().After(deadline) {
			for r, l := range c.lives {
				t.Logf("%s: %s", r, l.process.LogTail())
			}
			t.Fatalf("after two minutes without faults there are still %s", missing)
		}
		select {
		case <-t.Context().Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// fact is a committed event.
type fact struct {
	Account   string
	Version   int64
	Kind      string
	Scheduled bool
	first     bool // seen in Kafka
}

// unpublished reports whether it must not be in Kafka.
func (f *fact) unpublished() bool { return f.Kind == kindCancel || f.Kind == kindDiscard }

// idle reports whether it must have no effect.
func (f *fact) idle() bool { return f.unpublished() || f.Kind == kindSkip || f.Kind == kindDrop }

// check compares the committed events with the records in Kafka and with the effects.
func (c *cell) check(t *testing.T) {
	t.Helper()
	rows, err := c.db.Pool.Query(context.Background(), `select id::text, account, version, kind, scheduled from paid`)
	if err != nil {
		t.Fatal(err)
	}
	facts := map[string]*fact{}
	var id string
	var f fact
	if _, err := pgx.ForEachRow(rows, []any{&id, &f.Account, &f.Version, &f.Kind, &f.Scheduled}, func() error {
		one := f
		if facts[id] != nil {
			return fmt.Errorf("event %s was committed twice", id)
		}
		facts[id] = &one
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	c.checkLog(t, facts)
	c.checkEffects(t, facts)
}

// place is the scope in which numbers must rise.
type place struct {
	epoch, lane string
	partition   int32
}

// checkLog checks that exactly the committed events are in Kafka, that their first occurrences are in order by key and
// by number, and that no two events share a number (I1, I2, I4, I5).
func (c *cell) checkLog(t *testing.T, facts map[string]*fact) {
	t.Helper()
	last, highest, numbers := map[string]int64{}, map[place]int64{}, map[string]string{}
	records := kafkatest.ReadAll(t, c.topic)
	for _, r := range records {
		if r.Get("ce_source") == another {
			continue
		}
		id := r.Get("ce_id")
		f := facts[id]
		if f == nil {
			t.Errorf("phantom: %s is in Kafka (%d/%d) and was not committed", id, r.Partition, r.Offset)
			continue
		}
		if f.unpublished() {
			t.Errorf("event %s (%+v) was taken away, and is in Kafka", id, *f)
		}
		seq, err := strconv.ParseInt(r.Get("ce_laneseq"), 10, 64)
		if err != nil {
			t.Errorf("event %s has no number: %v", id, err)
		}
		number := r.Get("ce_epoch") + "/" + r.Get("ce_lane") + "/" + r.Get("ce_laneseq")
		at := place{r.Get("ce_epoch"), r.Get("ce_lane"), r.Partition}
		if other, used := numbers[number]; !used {
			numbers[number] = id
			// After a crash, a relay that reads the WAL repeats events of the previous numbering behind those of the
			// current one; that is how a consumer that deduplicates by number recognizes them.
			if again := at.lane == "-1" && f.first; seq < highest[at] && !again {
				t.Errorf("number %s occurs first after number %d of its lane and partition", number, highest[at])
			}
			highest[at] = max(highest[at], seq)
		} else if other != id {
			t.Errorf("number %s was given to %s and to %s", number, other, id)
		}
		if f.first {
			continue
		}
		f.first = true
		if key := string(r.Key); !f.Scheduled && key != "" {
			if f.Version <= last[key] {
				t.Errorf("order: version %d of %s occurs first after version %d", f.Version, key, last[key])
			}
			last[key] = max(last[key], f.Version)
		}
	}
	for id, f := range facts {
		if !f.first && !f.unpublished() {
			t.Errorf("lost: %s (%+v) was committed and is not in Kafka", id, *f)
		}
	}
	t.Logf("%d events, %d records", len(facts), len(records))
}

// checkEffects checks that every event had its effect once, in the order of its key (I1, I3, I4).
func (c *cell) checkEffects(t *testing.T, facts map[string]*fact) {
	t.Helper()
	rows, err := c.db.Pool.Query(context.Background(), `select id::text, account, version from effect order by ord`)
	if err != nil {
		t.Fatal(err)
	}
	effects, last := map[string]int{}, map[string]int64{}
	var id, key string
	var version int64
	if _, err := pgx.ForEachRow(rows, []any{&id, &key, &version}, func() error {
		effects[id]++
		f := facts[id]
		switch {
		case f == nil || f.idle():
			t.Errorf("event %s (%+v) has an effect and must have none", id, f)
		case effects[id] > 1:
			t.Errorf("event %s (%+v) has %d effects", id, *f, effects[id])
		case !f.Scheduled && key != "":
			if version <= last[key] {
				t.Errorf("order: version %d of %s was applied after version %d", version, key, last[key])
			}
			last[key] = max(last[key], version)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for id, f := range facts {
		if !f.idle() && effects[id] == 0 {
			t.Errorf("event %s (%+v) has no effect", id, *f)
		}
	}
}
