package operator_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay/operator"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func diagnose(t *testing.T, db *pgtest.DB) operator.Diagnosis {
	t.Helper()
	d, err := operator.Diagnose(t.Context(), db.Pool, db.Schema, false)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDiagnoseFresh(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	d := diagnose(t, db)
	if len(d.MissingRights) > 0 || d.Sequence != (operator.SequenceDiagnosis{Cache: 1, Increment: 1}) ||
		d.Misplaced > 0 || !d.SameSystem ||
		d.FreeLanes != 32 || d.OverdueLanes+d.Members+d.WaitingLanes+d.Parked+d.ParkedKeys+d.Undue != 0 ||
		d.Oldest != 0 || d.Vacuum.Off {
		t.Errorf("%+v", d)
	}
	if _, err := operator.Diagnose(t.Context(), db.Pool, "No", false); err == nil {
		t.Error("a wrong schema is accepted")
	}
}

// TestP1HashVectors: "The hash is undocumented and may differ between major versions or architectures: doctor compares
// stored test vectors".
func TestP1HashVectors(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	if d := diagnose(t, db); len(d.ChangedHashes) > 0 {
		t.Errorf("this server's hash function differs: %q; keys have other lanes here", d.ChangedHashes)
	}
	d, err := operator.DiagnoseWith(t.Context(), db.Pool, map[string]int64{"a": 3591986179850072241, "b": 1})
	if err != nil || !slices.Equal(d.ChangedHashes, []string{"b"}) {
		t.Errorf("%q, %v", d.ChangedHashes, err)
	}
	// Rows from before such a change. The lane column is not generated here, so that the test can set wrong lanes.
	db.Exec(t, `insert into outbox_event (topic, key, type) select 't', 'k' || g, 'T' from generate_series(1, 20) g`)
	db.Exec(t, `alter table outbox_event alter lane drop expression`)
	db.Exec(t, `update outbox_event set lane = (lane + 1) & 31 where key in ('k1', 'k2')`)
	if d := diagnose(t, db); d.Misplaced != 2 || d.WaitingLanes == 0 || d.Oldest <= 0 ||
		!slices.Equal(d.Waiting, []string{"t"}) {
		t.Errorf("%+v", d)
	}
}

// TestP10Sequence: "Restores and logical copies do not carry sequences: doctor checks last_value >= max(id)."
func TestP10Sequence(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	db.Exec(t, `insert into outbox_event (topic, key, type) select 't', 'k' || g, 'T' from generate_series(1, 20) g`)
	if d := diagnose(t, db); d.Sequence.Last != 20 || d.Sequence.Highest != 20 {
		t.Errorf("%+v", d.Sequence)
	}
	db.Exec(t, `alter sequence outbox_event_id_seq restart 5 cache 10 cycle`)
	if d := diagnose(t, db); d.Sequence != (operator.SequenceDiagnosis{
		Cache: 10, Increment: 1, Cycle: true, Last: 4,
		Highest: 20,
	}) {
		t.Errorf("%+v", d.Sequence)
	}
}

func TestDiagnoseLeases(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	db.Exec(t,
		`update outbox_lane set owner = gen_random_uuid(), lease_until = now() - interval '1 minute' where lane < 3`)
	db.Exec(t,
		`update outbox_lane set owner = gen_random_uuid(), lease_until = now() + interval '1 minute' where lane = 3`)
	db.Exec(t,
		`insert into relay_member (owner, seen, acked_at) values (gen_random_uuid(), now(), now()), (gen_random_uuid(),
				now() - interval '31 seconds', null)`)
	db.Exec(t,
		`insert into outbox_scheduled (due, topic, type) values (now() - interval '1 hour', 't', 'T'),
			(now() + interval '1 hour', 't', 'T')`)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('t', 3)`)
	db.Exec(t, `update outbox_meta set system_identifier = 1`)
	db.Exec(t, `alter table outbox_event set (autovacuum_enabled = off)`)
	d := diagnose(t, db)
	if d.FreeLanes != 28 || d.OverdueLanes != 3 || d.Members != 1 || len(d.Silent) != 1 || d.Publishes ||
		d.Undue != 1 || len(d.Topics) != 1 || d.Topics[0].Partitions != 3 || d.SameSystem || !d.Vacuum.Off {
		t.Errorf("%+v", d)
	}
	db.Exec(t, `update relay_member set lease_until = now() + interval '1 minute'`)
	if d := diagnose(t, db); !d.Publishes || d.Members != 2 || len(d.Silent) != 0 {
		t.Errorf("a live relay's ack is not seen, or one with a long lease, and few heartbeats, is not alive: %+v", d)
	}
	db.Exec(t, `update relay_member set acked_at = now() - interval '31 seconds'`)
	if d := diagnose(t, db); d.Publishes {
		t.Error("an old ack counts")
	}
}

// TestDiagnoseUnacked: an event that is older than the pin of its topic waits, held or not, or is parked; a younger one
// says nothing.
func TestDiagnoseUnacked(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	for _, sql := range []string{
		`insert into outbox_topic (topic, partitions, pinned_at) select topic, 3, now() - interval '1 hour'
			from unnest('{waits,held,acked,empty,refused}'::text[]) topic`,
		`insert into outbox_event (topic, type, created_at) values ('waits', 'T', now() - interval '2 hours'),
			('waits', 'T', now()), ('acked', 'T', now())`,
		`insert into outbox_held (lane, id, topic, partition, seq, sent, message_id, source, tenant, key, type,
				content_type, created_at)
			select 1, row_number() over (), topic, -1, row_number() over (), false, gen_random_uuid(), '', '', 'k', 'T', '',
				at from (values ('held', now() - interval '2 hours'), ('acked', now()), ('unpinned', now())) h (topic, at)`,
		`insert into outbox_parked (lane, id, alone, maybe_published, attempts, message_id, source, tenant, topic, key, type,
				content_type, created_at)
			select 1, row_number() over (), true, false, 1, gen_random_uuid(), '', '', topic, '', 'T', '', at
			from (values ('refused', now() - interval '2 hours'), ('acked', now())) p (topic, at)`,
	} {
		db.Exec(t, sql)
	}
	d, err := operator.Diagnose(t.Context(), db.Pool, db.Schema, false)
	if want := []string{"held", "refused", "waits"}; err != nil || !slices.Equal(d.Unacked, want) {
		t.Errorf("%v, want %v: %v", d.Unacked, want, err)
	}
}

func TestDiagnoseRights(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	role := fmt.Sprintf("d%d", time.Now().UnixNano())
	db.Exec(t, "create role "+role)
	defer db.Exec(t, "drop role "+role)
	db.Exec(t, "grant usage on schema "+db.Schema+" to "+role)
	defer db.Exec(t, "drop owned by "+role)
	cfg := db.Pool.Config()
	cfg.ConnConfig.RuntimeParams["role"] = role
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	d, err := operator.Diagnose(t.Context(), pool, db.Schema, false)
	all := strings.Join(d.MissingRights, "\n")
	if err != nil || !strings.Contains(all, "table outbox_lane: update") ||
		!strings.Contains(all, "sequence outbox_event_id_seq: select") {
		t.Errorf("%s, %v", all, err)
	}
}
