package soak

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/verify/history"
	"github.com/effectonce/effectonce/verify/history/tables"
	"github.com/effectonce/effectonce/verify/roles"
)

func sessionKinds() []kind {
	const track = "sessions"
	return []kind{
		{
			name: "idle-writer", track: track, shortest: 2 * time.Second, longest: 15 * time.Second,
			targets: one("outbox"), begin: idleWriter,
		},
		{
			name: "prepared", track: track, shortest: 2 * time.Second, longest: 15 * time.Second,
			targets: one("outbox"), begin: prepared,
		},
		{
			name: "writer-elsewhere", track: track, shortest: 3 * time.Second, longest: 15 * time.Second,
			targets: one("another database"), begin: otherDatabase,
		},
		{
			name: "old-snapshot", track: track, shortest: 5 * time.Second, longest: 20 * time.Second,
			targets: one("outbox"), begin: oldSnapshot,
		},
		{
			name: "deadlocks", track: track, shortest: 2 * time.Second, longest: 6 * time.Second,
			targets: func(settings) []string {
				return []string{"history_aggregate", "outbox_lane", "inbox_parked_key", "inbox_progress"}
			}, begin: deadlocks,
		},
		{
			name: "conflicts", track: track, shortest: 2 * time.Second, longest: 6 * time.Second,
			targets: func(settings) []string {
				return []string{"history_effect", "outbox_claim", "history_business", "inbox_parked"}
			}, begin: conflicts,
		},
		{
			name: "slot-dropped", track: track, shortest: time.Second, longest: 3 * time.Second, wal: true,
			targets: one("slot"), begin: func(s *testbed, _ fault) (func() error, error) {
				return func() error { return nil }, retry(func() error { // the relay reconnects soon
					return s.sql(
						`select pg_terminate_backend(s.active_pid) from pg_replication_slots s, outbox_wal w
							where s.slot_name = w.slot and s.active_pid is not null`,
						`select pg_drop_replication_slot(s.slot_name) from pg_replication_slots s, outbox_wal w
						where s.slot_name = w.slot`)
				})
			},
		},
		{
			name: "slot-advanced", track: track, shortest: time.Second, longest: 3 * time.Second, wal: true,
			targets: one("slot"), begin: func(s *testbed, _ fault) (func() error, error) {
				// It fails while a relay reads the slot, which is nearly always.
				err := s.sql(
					`select pg_replication_slot_advance(s.slot_name, pg_current_wal_lsn()) from pg_replication_slots s,
						outbox_wal w where s.slot_name = w.slot and s.active_pid is null`)
				return func() error { return nil }, err
			},
		},
		{
			name: "reader-ended", track: track, shortest: time.Second, longest: 3 * time.Second, wal: true,
			targets: one("slot"), begin: func(s *testbed, _ fault) (func() error, error) {
				return func() error { return nil },
					s.sql(
						`select pg_terminate_backend(s.active_pid) from pg_replication_slots s, outbox_wal w
							where s.slot_name = w.slot and s.active_pid is not null`)
			},
		},
		{
			name: "effect-hangs", track: track, checksEffect: true,
			shortest: 4 * time.Second, longest: 12 * time.Second,
			targets: func(settings) []string { return workers }, begin: hang,
		},
		{
			name: "retention", track: track, shortest: 2 * time.Second, longest: 8 * time.Second, targets: one("days"),
			begin: retention,
		},
	}
}

// holder counts the harness's own appends, for unique business ids and aggregates.
type holder struct{ n atomic.Int64 }

// connect opens a session as a role, without proxies.
func (x *testbed) connect(ctx context.Context, role string) (*pgx.Conn, error) {
	return pgx.Connect(ctx, roles.Login(role, x.address, x.database))
}

// hold appends events in an open transaction, and records them in the history as a producer does.
func (x *testbed) hold(ctx context.Context, tx pgx.Tx, n int) (op int64, err error) {
	key := fmt.Sprintf("held-%d", x.held.n.Add(1)%7)
	var events []event.Event
	var infos []history.Event
	for range n {
		version, err := tables.NextVersion(ctx, tx, "", key)
		if err != nil {
			return 0, err
		}
		business := fmt.Sprintf("held.%d", x.held.n.Add(1))
		e := event.Event{
			ID: event.NewID(), Topic: topicMain, Key: key, Type: "Held", ContentType: event.ContentTypeJSON,
			Payload: fmt.Appendf(nil, `{"business":%q,"canary":%q}`, business, roles.Canary),
		}
		infos = append(infos, tables.Describe(&e, version, business))
		events = append(events, e)
	}
	if err := tables.Record(ctx, tx, infos...); err != nil {
		return 0, err
	}
	if err := outbox.Append(ctx, tx, events...); err != nil {
		return 0, err
	}
	return x.note(history.Entry{Kind: history.KindAppend, Events: infos}), nil
}

func (x *testbed) appended(op int64, err error) {
	e := history.Entry{Kind: history.KindAppended, Op: op, Outcome: history.OK}
	if err != nil {
		e.Outcome, e.Err = history.Unknown, err.Error()
		if !pgerr.CommitUnknown(err) {
			e.Outcome = history.Failed
		}
	}
	x.note(e)
}

// idleWriter appends and stays idle in its transaction, so that events with higher ids commit first.
func idleWriter(s *testbed, f fault) (func() error, error) {
	ctx, cancel := context.WithTimeout(context.Background(), f.lasts+healLimit)
	conn, err := s.connect(ctx, roles.Producer)
	if err != nil {
		cancel()
		return nil, err
	}
	undo := func() error { defer cancel(); return conn.Close(context.Background()) }
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, errors.Join(err, undo())
	}
	op, err := s.hold(ctx, tx, 5)
	if err != nil {
		return nil, errors.Join(err, undo())
	}
	return func() error {
		defer func() { _ = undo() }()
		if f.param%3 == 0 {
			_ = tx.Rollback(ctx)
			s.note(history.Entry{Kind: history.KindAppended, Op: op, Outcome: history.Failed, Err: "rolled back"})
			return nil
		}
		// A crash or kill may have rolled it back, which is no failure.
		s.appended(op, tx.Commit(ctx))
		return nil
	}, nil
}

// prepared leaves a prepared transaction with events, which outlives its session and a restart of the server.
func prepared(s *testbed, f fault) (func() error, error) {
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	conn, err := s.connect(ctx, roles.Producer)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, err
	}
	op, err := s.hold(ctx, tx, 5)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("soak-%d", s.held.n.Add(1))
	if _, err := tx.Exec(ctx, "prepare transaction '"+name+"'", pgx.QueryExecModeSimpleProtocol); err != nil {
		// It may be prepared, and is not ended: the check for liveness finds it.
		s.note(history.Entry{Kind: history.KindAppended, Op: op, Outcome: history.Unknown, Err: err.Error()})
		return nil, errors.Join(err, s.endPrepared(name, "rollback"))
	}
	how, outcome := "commit", history.OK
	if f.param%3 == 0 {
		how, outcome = "rollback", history.Failed
	}
	return func() error {
		err := s.endPrepared(name, how)
		if err != nil {
			outcome = history.Unknown
		}
		s.note(history.Entry{Kind: history.KindAppended, Op: op, Outcome: outcome})
		return err
	}, nil
}

// endPrepared ends a prepared transaction if it exists.
func (x *testbed) endPrepared(name, how string) error {
	return retry(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
		defer cancel()
		var there bool
		if err := x.admin.QueryRow(ctx, "select exists (select from pg_prepared_xacts where gid = $1)", name).Scan(
			&there); err != nil || !there {
			return err
		}
		return x.sql(how + " prepared '" + name + "'")
	})
}

// otherDatabase keeps a transaction open that has written to another database.
func otherDatabase(s *testbed, _ fault) (func() error, error) {
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	u, err := url.Parse(s.pg.URL())
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, u.String())
	if err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, "begin; create temp table soak_elsewhere as select 1 as one; select pg_current_xact_id()",
		pgx.QueryExecModeSimpleProtocol)
	undo := func() error { return conn.Close(context.Background()) }
	if err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// oldSnapshot keeps a snapshot open, so that vacuum removes nothing.
func oldSnapshot(s *testbed, _ fault) (func() error, error) {
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.admin.Config().ConnString())
	if err != nil {
		return nil, err
	}
	undo := func() error { return conn.Close(context.Background()) }
	if _, err := conn.Exec(ctx, "begin isolation level repeatable read; select 1 from outbox_lane",
		pgx.QueryExecModeSimpleProtocol); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// deadlocks locks rows that the processes lock too, in other orders.
func deadlocks(s *testbed, f fault) (func() error, error) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i := range 3 {
		draw := rand.New(rand.NewPCG(f.param, uint64(i)))
		all.Go(func() {
			for ctx.Err() == nil {
				s.lockRows(ctx, f.target, draw)
			}
		})
	}
	return func() error { cancel(); all.Wait(); return nil }, nil
}

func (x *testbed) lockRows(ctx context.Context, table string, draw *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	wait := time.NewTimer(100 * time.Millisecond) // leave the others some time
	defer wait.Stop()
	_ = pgx.BeginFunc(ctx, x.admin, func(tx pgx.Tx) error {
		for range 3 {
			if _, err := tx.Exec(ctx, fmt.Sprintf("select from %s order by md5(ctid::text || %d) limit 3 for update",
				table, draw.IntN(1000)), pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
		}
		return nil
	})
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
}

// conflicts lets a share of the writes to a table fail with a serialization failure.
func conflicts(s *testbed, f fault) (func() error, error) {
	undo := "drop trigger if exists soak_conflict on " + f.target
	err := s.sql(`create or replace function soak_conflict() returns trigger language plpgsql as $$ begin
		if random() < 0.3 then raise exception 'drawn by the soak' using errcode = 'serialization_failure'; end if;
		return new; end $$`, "grant execute on function soak_conflict() to public",
		"set lock_timeout = '3s'; create trigger soak_conflict before insert on "+f.target+" for each statement "+
			"execute function soak_conflict()")
	return func() error { return s.retry(undo) }, err
}

// retention runs maintenance in three processes at once, and creates expired daily partitions for them to drop: of the
// archive, and of the inbox, whose DETACH waits for every transaction that uses the table.
func retention(s *testbed, f fault) (func() error, error) {
	for i := range 3 {
		day := time.Now().UTC().AddDate(0, 0, -int(100+f.param%100)-i)
		next := day.AddDate(0, 0, 1)
		r := strings.NewReplacer("{day}", day.Format("20060102"), "{from}", day.Format(time.DateOnly), "{to}",
			next.Format(time.DateOnly),
			"{first}", dayBound(day), "{end}", dayBound(next), "{owner}", roles.User("owner"))
		// Without the lock or disk space there is less to drop.
		_ = s.sql("set lock_timeout = '2s'", r.Replace(
			`create table outbox_archive_{day} (like outbox_archive including defaults including storage);
			alter table outbox_archive_{day} owner to {owner};
			alter table outbox_archive attach partition outbox_archive_{day} for values from ('{from}') to ('{to}')`))
		_ = s.sql(r.Replace(`create table inbox_message_{day} (like inbox_message including all);
			alter table inbox_message_{day} owner to effectonce_inbox_maintainer;
			alter table inbox_message attach partition inbox_message_{day} for values from ('{first}') to ('{end}')`))
	}
	box, err := relay.Open(s.admin, "")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for ctx.Err() == nil {
				one, done := context.WithTimeout(ctx, sqlLimit)
				_, _ = inbox.MaintainAll(one, s.admin, inbox.MaintainConfig{Logger: slog.New(slog.DiscardHandler)})
				_, _ = box.MaintainArchive(one, 2)
				done()
			}
		})
	}
	return func() error { cancel(); all.Wait(); return nil }, nil
}

// dayBound returns the first id of a daily partition.
func dayBound(day time.Time) string {
	ms := uint64(day.Truncate(24 * time.Hour).UnixMilli())
	return fmt.Sprintf("%08x-%04x-0000-0000-000000000000", ms>>16, ms&0xffff)
}

// hang lets one effect of a worker hang, or one after the other, until undo. All other partitions must go on.
func hang(s *testbed, f fault) (func() error, error) {
	since := s.mark()
	if !s.supervisor.signal(f.target, roles.SignalHang) {
		return nil, errNobody
	}
	hung := false
	stop := repeat(500*time.Millisecond, func() {
		if f.param%3 == 0 {
			s.supervisor.signal(f.target, roles.SignalHang)
		}
		ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
		defer cancel()
		var n int
		err := s.admin.QueryRow(ctx, "select count(*) from pg_stat_activity where client_port = any($1) and state = "+
			"'idle in transaction' and state_change < now() - interval '2 s'",
			ports(s.routes[f.target].wires())).Scan(&n)
		hung = hung || err == nil && n > 0
	})
	return func() error {
		_ = stop()
		if hung {
			s.tookEffect(f.kind)
			s.noteProgress(f, since)
		}
		s.supervisor.signal(f.target, roles.SignalResume)
		return nil
	}, nil
}
