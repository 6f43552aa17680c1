package relay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/build"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestRelaySaysWhatFails: a relay's row has its version, when Kafka last acked, and what fails, without the values that
// an error repeats, as long as it does.
func TestRelaySaysWhatFails(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	var broken atomic.Bool
	_, value := strconv.Atoi("4111-private")
	to := &memory{verdict: func(int, event.Event) error {
		if broken.Load() {
			return errors.Join(fmt.Errorf("timed out \x00\xff at %w", value), errors.New(strings.Repeat("é", 300)))
		}
		return nil
	}}
	startRelay(t, newRelay(t, db, to,
		config(shortLease, func(c *relay.Config) { c.Name, c.HoldAfter = "said", -1 })))
	r := saysOf(t, db, "a heartbeat", func(r operator.RelayStatus) bool { return r.Name != "" && r.Trouble == "" })
	if r.Version != build.Version() || r.TroubleFor != nil || r.Acked != nil {
		t.Errorf("a relay that has nothing to do says %+v", r)
	}
	broken.Store(true)
	fill(t, db, 10, 10)
	r = saysOf(t, db, "what fails", func(r operator.RelayStatus) bool {
		return strings.HasPrefix(r.Trouble, "kafka: ")
	})
	if !strings.Contains(r.Trouble, "timed out ") ||
		strings.Contains(r.Trouble, "4111") || len(r.Trouble) > 220 || r.TroubleFor == nil || r.Acked != nil {
		t.Errorf("while it fails: %+v", r)
	}
	broken.Store(false)
	r = saysOf(t, db, "that it works", func(r operator.RelayStatus) bool { return r.Trouble == "" && r.Acked != nil })
	if r.TroubleFor != nil {
		t.Errorf("once it works: %+v", r)
	}
}

// TestRelaySaysWhatItHolds: while a relay holds the events of a topic, its row names the topic and Kafka's error, also
// to the doctor.
func TestRelaySaysWhatItHolds(t *testing.T) {
	t.Parallel()
	db, b := outboxDB(t), newBroker(8)
	b.set(func(e *event.Event, _ int32) answer {
		if e.Topic == "payments" {
			return forbidden
		}
		return answer{}
	})
	appendTo(t, db, "payments", 3, 3, 0)
	appendTo(t, db, "orders", 3, 3, 0)
	startRelay(t, newRelay(t, db, b, config(func(c *relay.Config) { c.Name = "holder" })))
	says := func(what string, is func(operator.RelayStatus, []string) bool) {
		t.Helper()
		pgtest.Await(t, what, func() (bool, error) {
			st, err := operator.ReadStatus(t.Context(), db.Pool, db.Schema)
			if err != nil {
				return false, err
			}
			d, err := operator.Diagnose(t.Context(), db.Pool, db.Schema, true)
			return len(st.Relays.List) == 1 && is(st.Relays.List[0], d.Holding), err
		})
	}
	says("what is held", func(r operator.RelayStatus, holding []string) bool {
		return strings.HasPrefix(r.Trouble, "holds topic payments for ") && r.TroubleFor != nil &&
			strings.Contains(r.Trouble, forbidden.err.Error()) && len(holding) == 1 &&
			strings.HasPrefix(holding[0], "holder holds topic payments for ")
	})
	b.set(nil)
	awaitEmpty(t, db)
	says("that nothing is", func(r operator.RelayStatus, holding []string) bool {
		return r.Trouble == "" && r.TroubleFor == nil && len(holding) == 0
	})
}

// TestRelaySaysWhyNotFromTheWAL: a relay that should read the WAL and publishes from the table says why, and since
// when, until it reads the WAL.
func TestRelaySaysWhyNotFromTheWAL(t *testing.T) {
	t.Parallel()
	db, slot := walDB(t)
	db.Exec(t, `drop publication `+slot)
	startRelay(t, newRelay(t, db, &memory{}, config(fromWAL, shortLease, func(c *relay.Config) { c.Name = "said" })))
	saysOf(t, db, "why", func(r operator.RelayStatus) bool {
		return strings.HasPrefix(r.Trouble, "events are published from the table: ") &&
			strings.Contains(r.Trouble, "publication") && r.TroubleFor != nil
	})
	// It has tried again by then, and relay doctor tells of it.
	saysOf(t, db, "for long", func(r operator.RelayStatus) bool {
		return r.TroubleFor != nil && *r.TroubleFor > 10*time.Second
	})
	if _, err := operator.SetUpWAL(t.Context(), db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	saysOf(t, db, "that it reads the WAL", func(r operator.RelayStatus) bool {
		return r.Trouble == "" && r.TroubleFor == nil
	})
}

// saysOf awaits what the relay with the name "said" says of itself.
func saysOf(t *testing.T, db *pgtest.DB, what string, is func(operator.RelayStatus) bool) (r operator.RelayStatus) {
	t.Helper()
	pgtest.Await(t, what, func() (bool, error) {
		list, err := operator.ReadRelays(t.Context(), db.Pool, db.Schema)
		for _, one := range list.List {
			if one.Name == "said" {
				r = one
			}
		}
		return is(r), err
	})
	return r
}

// TestRelaySaysThatAPoolerLosesItsStatements: its log, and what it reports, name the setting that helps.
func TestRelaySaysThatAPoolerLosesItsStatements(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	pool := pgtest.Pool(t, "postgres://u@"+pgtest.NewPooler(t, db.URL)+"/d?sslmode=disable")
	once, err := relay.New(pool, &memory{}, config())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := once.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	logged, reported := &bytes.Buffer{}, make(chan error, 1) // read after the relay has ended
	r, err := relay.New(pool, &memory{}, config(func(c *relay.Config) {
		c.Logger = slog.New(slog.NewTextHandler(logged, nil))
		c.Observer.Outage = func(_ string, err error) {
			select {
			case reported <- err:
			default:
			}
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	stop := startRelay(t, r)
	err = <-reported
	_ = stop()
	const advice = "add default_query_exec_mode=exec"
	if !strings.Contains(fmt.Sprint(err), advice) || !strings.Contains(logged.String(), advice) {
		t.Errorf("the outage is %v, and the log\n%s", err, logged)
	}
}

// each is a publisher that asks memory about each event by itself: what it does not ack does not stop those behind it.
type each struct{ *memory }

func (p each) Publish(ctx context.Context, events []event.Event) (verdicts []error) {
	for i := range events {
		verdicts = append(verdicts, p.memory.Publish(ctx, events[i:i+1])...)
	}
	return verdicts
}

// TestRelaySaysThatThePublisherBreaksTheOrder: an ack behind an event of the key that has none is named, once.
func TestRelaySaysThatThePublisherBreaksTheOrder(t *testing.T) {
	t.Parallel()
	const line = "the publisher breaks the order of a key"
	for name, verdict := range map[string]error{
		"refused": refusedEvent, "unknown": errors.New("timed out"), "not sent": outcome.Retryable(errors.New("full")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, keeps := range []bool{false, true} {
				db, said := outboxDB(t), &text{}
				var failed atomic.Int32
				m := &memory{verdict: func(_ int, e event.Event) error {
					if e.Key == "k1" && string(e.Payload) == "1" && (verdict == refusedEvent || failed.Add(1) == 1) {
						return verdict
					}
					return nil
				}}
				to := relay.Publisher(each{m})
				if keeps {
					to = m
				}
				fill(t, db, 30, 10)
				stop := startRelay(t, newRelay(t, db, to, config(func(c *relay.Config) {
					c.Logger = slog.New(slog.NewTextHandler(said, nil))
				})))
				awaitDrained(t, db)
				if err := stop(); err != nil {
					t.Fatal(err)
				}
				want := 1
				if keeps {
					want = 0
				}
				if all := said.end(); strings.Count(all, line) != want {
					t.Errorf("it keeps the order: %v, and this is said of it: %s", keeps, all)
				}
				if !keeps && said.of(line, verdict.Error()) == "" {
					t.Errorf("the line does not say why: %s", said.of(line))
				}
			}
		})
	}
}
