package inbox_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/inbox"
)

// TestSample checks each figure, and that it does not count another consumer's rows.
func TestSample(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.inbox(inbox.Config{Window: 24 * time.Hour, AllowShortWindow: true, DaysAhead: 3})
	sample := func() inbox.Sample {
		t.Helper()
		s, err := in.Sample(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	today := time.Now().UTC().Truncate(24 * time.Hour)
	if s := sample(); s.Parked != 0 || s.Quarantined != 0 || s.BlockedKeys != 0 || s.Halted != 0 ||
		s.DaysEnd.After(today.Add(24*time.Hour)) {
		t.Errorf("an empty inbox: %+v", s)
	}
	if err := in.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, consumer := range []string{"ledger", "other"} {
		w.Exec(t, `insert into inbox_parked_key (consumer_name, key_hash, tenant, topic, key, state, at_bound)
			values ($1, sha256('a'), '', 't', 'a', 'parked', true), ($1, sha256('b'), '', 't', 'b', 'releasing',
				false)`, consumer)
		w.Exec(t,
			`insert into inbox_parked (consumer_name, message_id, key_hash, kind, topic, record_partition,
					record_offset, record_millis, parked_at)
			select $1, gen_random_uuid(), k.hash, k.kind, 't', 0, 0, 0, now() - interval '1 hour'
			from (values (sha256('a'), 'failed'), (sha256('a'), 'behind'), (null, 'failed'),
				(null, 'quarantined')) k (hash, kind)`, consumer)
		w.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset, halted_at)
			values ($1, 't', 0, 0, 0, now()), ($1, 't', 1, 0, 0, null)`, consumer)
	}
	s := sample()
	if s.Parked != 3 || s.Quarantined != 1 || s.ParkedFor < time.Hour || s.ParkedFor > 2*time.Hour {
		t.Errorf("parked %d for %v, quarantined %d", s.Parked, s.ParkedFor, s.Quarantined)
	}
	if s.BlockedKeys != 2 || s.Releasing != 1 || s.AtBound != 1 || s.Halted != 1 {
		t.Errorf("keys %d, releasing %d, at the bound %d, halted %d", s.BlockedKeys, s.Releasing, s.AtBound, s.Halted)
	}
	// Midnight may pass during the test.
	if days := s.DaysEnd.Sub(today); days != 4*24*time.Hour && days != 5*24*time.Hour {
		t.Errorf("days end at %v, today is %v", s.DaysEnd, today)
	}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		cfg := w.Pool.Config()
		cfg.ConnConfig.DefaultQueryExecMode = mode
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		again, err := inbox.New(pool, "ledger", inbox.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := again.Sample(t.Context()); err != nil || got.Parked != 3 || got.AtBound != 1 {
			t.Errorf("%v: %+v, %v", mode, got, err)
		}
	}
}
