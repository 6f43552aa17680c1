package operator_test

import (
	"slices"
	"testing"
	"time"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/internal/days"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestDiagnose(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "inbox")
	diagnose := func() operator.Diagnosis {
		t.Helper()
		d, err := operator.Diagnose(t.Context(), db.Pool, db.Schema, false)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := diagnose(); d.DaysAhead != -1 || len(d.MissingRights) > 0 || len(d.Missing) != 1 || len(d.Consumers) > 0 {
		t.Errorf("fresh: %+v", d)
	}
	in, err := inbox.New(db.Pool, "ledger", inbox.Config{Schema: db.Schema})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	d := diagnose()
	if d.DaysAhead != 7 || len(d.Missing)+len(d.Pending) > 0 || len(d.Consumers) != 1 ||
		d.Consumers[0].Window != 14*24*time.Hour {
		t.Errorf("maintained: %+v", d)
	}
	today := pgtest.One[int](t, db, `select floor(extract(epoch from clock_timestamp()) / 86400)::int`)
	for _, n := range []int{today - 3, today + 2} {
		db.Exec(t, "drop table "+days.Prefix+days.Name(days.Number(n)))
	}
	db.Exec(t,
		`insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, halted_at, halted_code)
		values ('ledger', 'payments', 3, 1, 2, now(), 'bound')`)
	db.Exec(t,
		`insert into inbox_parked (consumer_name, message_id, kind, topic, record_partition, record_offset,
				record_millis)
		values ('ledger', gen_random_uuid(), 'quarantined', 'payments', 0, 0, 0), ('ledger', gen_random_uuid(),
			'failed', 'payments', 0, 1, 0)`)
	d = diagnose()
	c := d.Consumers[0]
	if d.DaysAhead != 1 || !slices.Equal(d.Missing, []string{days.Name(days.Number(today - 3))}) || c.Parked != 1 ||
		c.Quarantined != 1 ||
		len(c.Partitions) != 1 || c.Partitions[0].Code != "bound" || c.Partitions[0].HaltedAt == nil {
		t.Errorf("with gaps: %+v", d)
	}
}

// TestDiagnosePrograms: the programs that run a consumer are listed, without one that has ended.
func TestDiagnosePrograms(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "inbox")
	for _, program := range []string{"acme/ledger", "old/ledger", "acme/copy"} {
		in, err := inbox.New(db.Pool, "ledger", inbox.Config{Schema: db.Schema, Program: program})
		if err != nil {
			t.Fatal(err)
		}
		if err := in.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	db.Exec(t,
		`update inbox_consumer set programs = jsonb_set(programs, '{old/ledger,seen}',
				to_jsonb(clock_timestamp() - interval '4 min'))`)
	d, err := operator.Diagnose(t.Context(), db.Pool, db.Schema, false)
	if err != nil || len(d.Consumers) != 1 || !slices.EqualFunc(d.Consumers[0].Programs,
		[]string{"acme/copy", "acme/ledger"},
		func(p operator.Program, name string) bool { return p.Name == name && p.Host != "" }) {
		t.Errorf("diagnosis %+v, %v", d.Consumers, err)
	}
}
