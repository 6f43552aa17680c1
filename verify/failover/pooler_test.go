package failover

import (
	"errors"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/effectonce/effectonce/event"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestPgBouncer: producer, relay and worker connect through PgBouncer, which hides a crash and a failover from them:
// their connections stay. In transaction mode pgx does not prepare statements, which PgBouncer before 1.21 loses.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	for mode, query := range map[string]string{"session": "", "transaction": "default_query_exec_mode=exec"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := newTestbed(t, true)
			u, err := url.Parse(pgtest.NewBouncer(t, s.proxy.URL(), mode))
			if err != nil {
				t.Fatal(err)
			}
			u.RawQuery += "&" + query
			p, r, w := s.producer("producer", u.String()), s.relay("relay", u.String()), s.worker("worker", u.String())
			pgtest.AwaitSQL(t, s.old, `select count(*) > 100 from history_effect`)
			s.primary.Kill()
			s.primary.Start(t)
			s.awaitPayments(100)
			s.primary.Kill()
			s.promote()
			s.awaitPayments(100)
			p.stopAndWait(t)
			s.awaitDrained()
			s.operate(u.String())
			r.stopAndWait(t)
			w.stopAndWait(t)
			if v := s.verdict(nil); !v.OK() || v.Counts.Incarnations != 2 {
				t.Errorf("%d numberings: %s", v.Counts.Incarnations, v)
			}
		})
	}
}

// operate appends with database/sql and runs operator's commands over the URL.
func (s *testbed) operate(url string) {
	s.t.Helper()
	ctx, db := s.t.Context(), s.pool(url)
	std := stdlib.OpenDBFromPool(db)
	defer func() { _ = std.Close() }()
	tx, err := std.BeginTx(ctx, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	err = outbox.AppendSQL(ctx, tx, event.Event{ID: event.NewID(), Topic: s.topic, Key: "k", Type: "Paid"})
	if err = errors.Join(err, tx.Rollback()); err != nil {
		s.t.Error(err)
	}
	o, err := operator.New(db, "", "anna")
	if err != nil {
		s.t.Fatal(err)
	}
	_, status := operator.ReadStatus(ctx, db, "")
	_, outboxErr := operator.Diagnose(ctx, db, "", false)
	_, inboxErr := inboxoperator.Diagnose(ctx, db, "", false)
	pause := o.PauseTopic(ctx, s.topic, "test")
	resume := o.ResumeTopic(ctx, s.topic, "test")
	if err := errors.Join(status, outboxErr, inboxErr, pause, resume); err != nil {
		s.t.Error(err)
	}
}
