package endtoend

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// runPoisoned runs a worker whose effect kills its process at every event of type "Poison", before or after its insert.
func runPoisoned(ctx context.Context, db *pgxpool.Pool, brokers []string, topic string) error {
	in, err := inbox.New(db, "poisoned", inbox.Config{CrashAttempts: poisonAttempts})
	if err != nil {
		return err
	}
	h := in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		var ids []string
		poison := false
		for _, e := range events {
			ids = append(ids, e.ID.String())
			poison = poison || e.Type == "Poison"
		}
		if _, err := tx.Exec(ctx, `insert into applied (id) select unnest($1::text[])::uuid`, ids); err != nil {
			return err
		}
		if poison {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	})
	c, err := consumer.New(h, brokers, []string{topic}, consumer.Config{
		Group: topic, Batch: 50, SessionTimeout: time.Minute, // the test removes who has died
		HeartbeatInterval: 200 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return in.Run(ctx) })
	return g.Wait()
}

// poisonAttempts is low, because each takes a process.
const poisonAttempts = 2

// TestP9_5_KillingEventIsParked: an event kills its process with SIGKILL every time. It is parked after its counted
// runs, later events of its key are parked behind it, and all others in both partitions are applied once.
func TestP9_5_KillingEventIsParked(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	s := &testbed{db: pgtest.NewDatabase(t, migrations.Inbox), topic: kafkatest.Topic(t, 2)}
	s.db.Exec(t, `create table applied (id uuid primary key)`)
	var poison uuid.UUID
	var records []kafkatest.Record
	for i := range 400 {
		e := event.Event{ID: event.NewID(), Type: "Fine", Key: fmt.Sprintf("key-%d", i%40)}
		e.Position.Epoch = uuid.NewString() + ".1" // a relay's, so that it keeps its id
		if i == 130 {
			e.Type, poison = "Poison", e.ID
		}
		r := kafkatest.Record{Partition: int32(i % 2), Key: []byte(e.Key), Value: []byte("{}")}
		for _, h := range event.AppendHeaders(nil, &e) {
			r.Headers = append(r.Headers, kafkatest.Header(h))
		}
		records = append(records, r)
	}
	kafkatest.Produce(t, s.topic, records...)
	deaths := s.runUntil(t, `select (select count(*) from applied) + (select count(*) from inbox_parked) = 400`)
	// One death before the run was counted; the batch before it may cost another.
	if deaths < poisonAttempts+1 || deaths > poisonAttempts+2 {
		t.Errorf("%d deaths, want %d", deaths, poisonAttempts+1)
	}
	if code := pgtest.One[string](t, s.db, `select code from inbox_parked where message_id = $1`,
		poison.String()); code != inbox.CodeKilled {
		t.Errorf("parked with code %q", code)
	}
	// Its key comes every 40 records: 130, and behind it 170, 210, ... 370.
	if n := pgtest.One[int](t, s.db, `select count(*) from inbox_parked where kind = 'behind'`); n != 6 {
		t.Errorf("%d events wait behind it, want 6", n)
	}
	if n := pgtest.One[int](t, s.db, `select count(*) from applied`); n != 393 {
		t.Errorf("%d other events applied, want 393", n)
	}
	if n := pgtest.One[int](t, s.db, `select count(*) from inbox_parked_key`); n != 1 {
		t.Errorf("%d keys are parked, want 1", n)
	}

	// Released with the same effect it kills again, its runs are counted, and it is parked again.
	o, err := operator.New(s.db.Pool, "", "poisoned", "ada")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := o.ReleaseKey(t.Context(), "", s.topic, "key-10", admin.Seen{}, "too early"); err != nil || n != 7 {
		t.Fatalf("%d events released: %v", n, err)
	}
	if deaths := s.runUntil(t,
		`select state = 'parked' and code = 'killed' from inbox_parked_key`); deaths != poisonAttempts+1 {
		t.Errorf("%d deaths of a release, want %d: one of the batch, which is not counted, and then those of the event",
			deaths, poisonAttempts+1)
	}
	if n := pgtest.One[int](t, s.db, `select count(*) from applied`); n != 393 {
		t.Errorf("%d other events applied, want 393 as before", n)
	}
}

// runUntil starts workers, one after the other's death, until the condition holds, and counts the deaths.
func (s *testbed) runUntil(t *testing.T, condition string) (deaths int) {
	t.Helper()
	for {
		p := s.start(t, rolePoisoned)
		dead, holds := false, false
		pgtest.Await(t, "death or "+condition, func() (bool, error) {
			select {
			case <-p.Done():
				dead = true
				return true, nil
			default:
			}
			err := s.db.Pool.QueryRow(t.Context(), condition).Scan(&holds)
			return holds, err
		})
		if !dead {
			p.Stop(syscall.SIGTERM, time.Minute)
			return deaths
		}
		awaitKill(t, p)
		s.bury(t)
		if deaths++; deaths > poisonAttempts+3 {
			t.Fatalf("%d deaths", deaths)
		}
	}
}

// bury removes the members of a group without a living process, as the broker does at the end of their sessions.
func (s *testbed) bury(t *testing.T) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Brokers(t)...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	describe := kmsg.NewPtrDescribeGroupsRequest()
	describe.Groups = []string{s.topic}
	described, err := describe.RequestWith(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group = s.topic
	for _, m := range described.Groups[0].Members {
		member := kmsg.NewLeaveGroupRequestMember()
		member.MemberID = m.MemberID
		leave.Members = append(leave.Members, member)
	}
	if len(leave.Members) == 0 {
		return
	}
	left, err := leave.RequestWith(t.Context(), client)
	if err == nil {
		err = kerr.ErrorForCode(left.ErrorCode)
	}
	if err != nil {
		t.Fatal(err)
	}
}
