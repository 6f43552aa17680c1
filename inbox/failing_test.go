package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

var errBad = errors.New("bad event")

// halted checks that err is the HaltError of event id, and returns it.
func halted(t testing.TB, err error, id uuid.UUID) *inbox.HaltError {
	t.Helper()
	h, ok := errors.AsType[*inbox.HaltError](err)
	if !ok {
		t.Fatalf("got error %v, want a HaltError", err)
	}
	if h.Event.ID != id || h.Event.Payload != nil || h.Event.Key != "" {
		t.Fatalf("halted by %+v, want %s without payload and key", h.Event, id)
	}
	return h
}

// retries records the reasons of Observer.Retried.
type retries struct {
	mu   sync.Mutex
	list []string
}

func (r *retries) observer() inbox.Observer {
	return inbox.Observer{Retried: func(i inbox.RetriedInfo) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.list = append(r.list, i.Reason)
	}}
}

func (r *retries) count(reason string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.list {
		if s == reason {
			n++
		}
	}
	return n
}

func TestP9_4_EventsBeforeFailureAreApplied(t *testing.T) {
	t.Parallel()
	for _, at := range []int{0, 1, 6, 11, 12} {
		for name, handler := range map[string]func(*inbox.Inbox, uuid.UUID, *int) inbox.Handler{
			"each": func(in *inbox.Inbox, bad uuid.UUID, runs *int) inbox.Handler {
				return in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
					if e.ID == bad {
						*runs++
						return errors.Join(write(ctx, tx, e), errBad)
					}
					return write(ctx, tx, e)
				})
			},
			"batch split": func(in *inbox.Inbox, bad uuid.UUID, runs *int) inbox.Handler {
				return in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
					if err := writeAll(ctx, tx, events); err != nil {
						return err
					}
					if slices.Contains(ids(events), bad) {
						if len(events) == 1 {
							*runs++
						}
						return errBad
					}
					return nil
				})
			},
			"batch named": func(in *inbox.Inbox, bad uuid.UUID, runs *int) inbox.Handler {
				return in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
					if i := slices.Index(ids(events), bad); i >= 0 {
						*runs++
						return fmt.Errorf("wrapped: %w", inbox.Of(events[i], errBad))
					}
					return writeAll(ctx, tx, events)
				})
			},
		} {
			t.Run(fmt.Sprintf("%s at %d", name, at), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				events, runs := some(13), 0
				out, err := handler(w.halting(inbox.Config{MaxAttempts: 3}), events[at].ID, &runs).Handle(t.Context(),
					events)
				h := halted(t, err, events[at].ID)
				if !errors.Is(err, errBad) || runs != 3 || h.Attempts != 3 {
					t.Errorf("runs %d, attempts %d, error %v", runs, h.Attempts, err)
				}
				same(t, "outcomes", out, append(repeat(inbox.Applied, at), repeat(inbox.Undecided, 13-at)...))
				same(t, "effects", w.effects(), ids(events[:at]))
				if days, _ := w.rows(); days != at {
					t.Errorf("%d ids recorded, want %d", days, at)
				}
			})
		}
	}
}

func TestP9_4_TransientFailureKeepsOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	events := some(9)
	left := map[uuid.UUID]int{events[2].ID: 2, events[3].ID: 1, events[8].ID: 4}
	out := handle(t, w.halting(inbox.Config{}).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if left[e.ID] > 0 {
			left[e.ID]--
			return errBad
		}
		return write(ctx, tx, e)
	}), events)
	same(t, "outcomes", out, repeat(inbox.Applied, 9))
	same(t, "effects", w.effects(), ids(events))
}

func TestP9_5_Classes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		cfg  inbox.Config
		runs int
		code string
	}{
		"terminal": {outcome.Terminal("no_account", errBad), inbox.Config{}, 1, "no_account"},
		"terminal, wrapped": {
			fmt.Errorf("x: %w", outcome.Terminal("no_account", errBad)),
			inbox.Config{},
			1,
			"no_account",
		},
		"retryable, out of time": {outcome.Retryable(errBad), inbox.Config{MaxRetryFor: 1, MaxAttempts: 1}, 2, ""},
		"unknown, out of time":   {outcome.Unknown(errBad), inbox.Config{MaxRetryFor: 1, MaxAttempts: 1}, 2, ""},
		"no class":               {errBad, inbox.Config{MaxAttempts: 4}, 4, ""},
		"no class, one attempt":  {errBad, inbox.Config{MaxAttempts: 1}, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			events, runs, told := some(5), 0, 0
			c.cfg.Observer.Halted = func(*inbox.HaltError) { told++ }
			_, err := w.halting(c.cfg).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
				if e.ID == events[2].ID {
					runs++
					return c.err
				}
				return write(ctx, tx, e)
			}).Handle(t.Context(), events)
			halted(t, err, events[2].ID)
			if _, code := outcome.Of(err); code != c.code || runs != c.runs || told != 1 {
				t.Errorf("%d runs, code %q, observer told %d times: %v", runs, code, told, err)
			}
			same(t, "effects", w.effects(), ids(events[:2]))
		})
	}
}

// TestP9_5_OutagesOfOtherSystems: an effect that fails because of another system's network, or that breaks its
// connection by its own deadline, does not count as an outage of the database, which is retried without end.
func TestP9_5_OutagesOfOtherSystems(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(context.Context, pgx.Tx) error{
		"network": func(context.Context, pgx.Tx) error { return &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED} },
		"eof":     func(context.Context, pgx.Tx) error { return io.ErrUnexpectedEOF },
		"its own deadline": func(ctx context.Context, tx pgx.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			_, err := tx.Exec(ctx, "select pg_sleep(100)")
			return err
		},
		"statement time-out": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "set local statement_timeout = '20ms'; select pg_sleep(100)")
			return err
		},
		"another database": func(ctx context.Context, tx pgx.Tx) error {
			_, err := pgx.Connect(ctx, "postgres://x@127.0.0.1:1/x?sslmode=disable")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, runs, events := newWorld(t), 0, some(2)
			in := w.halting(inbox.Config{MaxAttempts: 3})
			_, err := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
				if e.ID != events[1].ID {
					return write(ctx, tx, e)
				}
				runs++
				return do(ctx, tx)
			}).Handle(t.Context(), events)
			if halted(t, err, events[1].ID); runs != 3 {
				t.Errorf("%d runs", runs)
			}
			same(t, "effects", w.effects(), ids(events[:1]))
		})
	}
}

func TestP9_3_ConnectionLostInAnEffect(t *testing.T) {
	t.Parallel()
	w, r, events := newWorld(t), &retries{}, some(5)
	first := true
	out := handle(t, w.halting(inbox.Config{MaxAttempts: 1, Observer: r.observer()}).Each(
		func(ctx context.Context, tx pgx.Tx, e event.Event) error {
			if e.ID == events[3].ID && first {
				first = false
				_, err := tx.Exec(ctx, "select pg_terminate_backend(pg_backend_pid())")
				return outcome.Terminal("wrapped", err)
			}
			return write(ctx, tx, e)
		}), events)
	same(t, "outcomes", out, repeat(inbox.Applied, 5))
	same(t, "effects", w.effects(), ids(events))
	if r.count("away") != 1 {
		t.Errorf("retries %v", r.list)
	}
}

// TestP9_2_ManyTwins: several processes handle the same events, in different batches and orders, with ids of both
// tables.
func TestP9_2_ManyTwins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	events := some(300)
	for i := 0; i < len(events); i += 3 {
		events[i].ID = uuid.New()
	}
	var wg sync.WaitGroup
	var applied atomic.Int64
	for n := range 6 {
		h := newInbox(t, w.Pool, "ledger", small(inbox.Config{MaxAttempts: 1, Observer: inbox.Observer{
			Handled: func(i inbox.HandledInfo) { applied.Add(int64(i.Applied)) },
			Retried: func(i inbox.RetriedInfo) {
				if pgerr.Is(i.Err, pgerr.DeadlockDetected) {
					t.Error("a deadlock:", i.Err)
				}
			},
		}})).Batch(writeAll)
		mine := slices.Clone(events)
		rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
		wg.Go(func() {
			for part := range slices.Chunk(mine, 20+n*7) {
				handleTwin(t, h, part)
			}
		})
	}
	wg.Wait()
	got, want := w.effects(), ids(events)
	byBytes := func(a, b uuid.UUID) int { return strings.Compare(string(a[:]), string(b[:])) }
	slices.SortFunc(got, byBytes)
	slices.SortFunc(want, byBytes)
	same(t, "effects", got, want)
	if applied.Load() != int64(len(events)) {
		t.Errorf("%d events reported as applied, want %d", applied.Load(), len(events))
	}
}

// TestP9_2_IDsAreInsertedInOrder: a batch has the higher of two ids first, and another session has inserted the lower
// one. The batch must wait before it inserts the higher one, which the other session inserts next.
func TestP9_2_IDsAreInsertedInOrder(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), &retries{}
	events := some(2)
	low, high := events[0], events[1]
	h := w.inbox(inbox.Config{
		Window: oneDay, AllowShortWindow: true, DaysAhead: 1, LockTimeout: -1,
		Observer: r.observer(),
	}).Each(write)
	handle(t, h, of(event.NewID())) // creates the days
	other := w.Connect(t)
	exec := func(sql string) {
		t.Helper()
		if _, err := other.Exec(t.Context(), sql); err != nil {
			t.Fatalf("the session that inserts ids in order: %v", err)
		}
	}
	insert := "insert into inbox_message (consumer_name, message_id) values ('ledger', '%s')"
	exec("begin; set local deadlock_timeout = '10ms'; " + fmt.Sprintf(insert, low.ID))
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { handle(t, h, []event.Event{high, low}) })
	pgtest.AwaitBlocking(t, w.DB, other.PgConn().PID())
	exec(fmt.Sprintf(insert, high.ID))
	exec("rollback")
	wg.Wait()
	same(t, "effects", w.effects()[1:], []uuid.UUID{high.ID, low.ID})
	if n := r.count("conflict"); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

func TestP9_5_RetryableSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	for name, mark := range map[string]func(error) error{"retryable": outcome.Retryable, "unknown": outcome.Unknown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			events, runs := some(3), 0
			handle(t, w.halting(inbox.Config{MaxAttempts: 2}).Each(
				func(ctx context.Context, tx pgx.Tx, e event.Event) error {
					if e.ID == events[1].ID {
						if runs++; runs < 8 {
							return mark(errBad)
						}
					}
					return write(ctx, tx, e)
				}), events)
			same(t, "effects", w.effects(), ids(events))
		})
	}
}

// TestFailureIsLogged: a Config that names no Logger is not silent. It runs alone: the default logger is everybody's.
func TestFailureIsLogged(t *testing.T) {
	w := newWorld(t)
	var said strings.Builder
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
	events := some(1)
	_, err := w.halting(inbox.Config{MaxAttempts: 2}).Each(func(ctx context.Context, tx pgx.Tx, _ event.Event) error {
		_, err := tx.Exec(ctx, "insert into no_such_table values (1)")
		return err
	}).Handle(t.Context(), events)
	halted(t, err, events[0].ID)
	if !strings.Contains(said.String(), "no_such_table") {
		t.Errorf("the log does not say why:\n%s", &said)
	}
}

func TestPanicIsAnErrorOfItsEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var log strings.Builder
	events := some(3)
	_, err := w.halting(inbox.Config{MaxAttempts: 2, Logger: slog.New(slog.NewTextHandler(&log, nil))}).Each(
		func(ctx context.Context, tx pgx.Tx, e event.Event) error {
			if e.ID == events[1].ID {
				rows, _ := tx.Query(ctx, "select generate_series(1, 100000)") // left open
				rows.Next()
				panic("boom")
			}
			return write(ctx, tx, e)
		}).Handle(t.Context(), events)
	if h := halted(t, err, events[1].ID); h.Attempts != 2 ||
		!strings.Contains(err.Error(), "the effect panicked with a string") || strings.Contains(log.String(), "boom") {
		t.Errorf("attempts %d, error %v", h.Attempts, err)
	}
	if !strings.Contains(log.String(), "failing_test.go") {
		t.Errorf("no stack in the log:\n%s", &log)
	}
	same(t, "effects", w.effects(), ids(events[:1]))
}

// TestGoexitIsAnErrorOfItsEvent: an effect that ends its goroutine, as testify's require does, fails. The partition's
// goroutine goes on.
func TestGoexitIsAnErrorOfItsEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	events := some(3)
	_, err := w.halting(inbox.Config{MaxAttempts: 2}).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if e.ID == events[1].ID {
			runtime.Goexit()
		}
		return write(ctx, tx, e)
	}).Handle(t.Context(), events)
	if h := halted(t, err, events[1].ID); h.Attempts != 2 || !strings.Contains(err.Error(), "runtime.Goexit") {
		t.Errorf("attempts %d, error %v", h.Attempts, err)
	}
	same(t, "effects", w.effects(), ids(events[:1]))
}

func TestSkip(t *testing.T) {
	t.Parallel()
	skipThird := func(write bool) inbox.Effect {
		n := 0
		return func(ctx context.Context, tx pgx.Tx, e event.Event) error {
			if e.Type != "Skip" {
				return writeOne(ctx, tx, e)
			}
			n++
			if write {
				if err := writeOne(ctx, tx, e); err != nil {
					return err
				}
			}
			return fmt.Errorf("not for us: %w", inbox.Skip)
		}
	}
	for name, c := range map[string]struct {
		handler func(*inbox.Inbox) inbox.Handler
		reruns  int
	}{
		"before writing": {func(in *inbox.Inbox) inbox.Handler { return in.Each(skipThird(false)) }, 0},
		"after writing":  {func(in *inbox.Inbox) inbox.Handler { return in.Each(skipThird(true)) }, 1},
		"batch, one by one": {func(in *inbox.Inbox) inbox.Handler {
			return in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
				if err := writeAll(ctx, tx, events); err != nil {
					return err
				}
				for _, e := range events {
					if e.Type == "Skip" {
						return inbox.Of(e, inbox.Skip)
					}
				}
				return nil
			})
		}, 3},
		"batch, joined": {func(in *inbox.Inbox) inbox.Handler {
			return in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
				err := writeAll(ctx, tx, events)
				for _, e := range events {
					if e.Type == "Skip" {
						err = errors.Join(err, inbox.Of(e, inbox.Skip))
					}
				}
				return err
			})
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, r := newWorld(t), &retries{}
			events := some(6)
			want, kept := repeat(inbox.Applied, 6), []uuid.UUID{}
			for i := range events {
				if i == 1 || i == 2 || i == 5 {
					events[i].Type, want[i] = "Skip", inbox.Skipped
				} else {
					kept = append(kept, events[i].ID)
				}
			}
			h := c.handler(w.halting(inbox.Config{Observer: r.observer()}))
			same(t, "outcomes", handle(t, h, events), want)
			same(t, "effects", w.effects(), kept)
			same(t, "again", handle(t, h, events), repeat(inbox.Duplicate, 6))
			if n := r.count("skip"); n != c.reruns {
				t.Errorf("%d runs were repeated, want %d", n, c.reruns)
			}
		})
	}
}

func writeOne(ctx context.Context, tx pgx.Tx, e event.Event) error { return write(ctx, tx, e) }

func TestSkipWholeBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.halting(inbox.Config{}).Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		return errors.Join(writeAll(ctx, tx, events), inbox.Skip)
	})
	same(t, "outcomes", handle(t, h, some(4)), repeat(inbox.Skipped, 4))
	same(t, "effects", w.effects(), nil)
}

// TestSkipWithAFailure: an error that an effect joins to Skip is one, as when a deferred call of it fails.
func TestSkipWithAFailure(t *testing.T) {
	t.Parallel()
	failure := func(e event.Event) error {
		return map[int64]error{
			0: errors.Join(inbox.Skip, errBad), 1: fmt.Errorf("%w, and then: %w", inbox.Skip, errBad),
			2: errors.Join(nil, fmt.Errorf("not ours: %w", inbox.Skip)),
		}[e.Position.Offset]
	}
	for name, handler := range map[string]func(*inbox.Inbox) inbox.Handler{
		"each": func(in *inbox.Inbox) inbox.Handler {
			return in.Each(func(_ context.Context, _ pgx.Tx, e event.Event) error { return failure(e) })
		},
		"batch": func(in *inbox.Inbox) inbox.Handler {
			return in.Batch(func(_ context.Context, _ pgx.Tx, events []event.Event) error {
				return failure(events[0])
			})
		},
		"batch, of": func(in *inbox.Inbox) inbox.Handler {
			return in.Batch(func(_ context.Context, _ pgx.Tx, events []event.Event) error {
				return inbox.Of(events[0], failure(events[0]))
			})
		},
		"batch, of and a failure": func(in *inbox.Inbox) inbox.Handler {
			return in.Batch(func(_ context.Context, _ pgx.Tx, events []event.Event) error {
				if events[0].Position.Offset == 2 {
					return inbox.Of(events[0], inbox.Skip)
				}
				return errors.Join(inbox.Of(events[0], inbox.Skip), errBad)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			events := some(3)
			for i := range events {
				events[i].Key = events[i].ID.String()
			}
			h := handler(w.inbox(inbox.Config{MaxAttempts: 2}))
			want := []inbox.Outcome{inbox.Parked, inbox.Parked, inbox.Skipped}
			for i := range events {
				same(t, "outcomes", handle(t, h, events[i:i+1]), want[i:i+1])
			}
		})
	}
}

func TestOfOutsideTheBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	events := some(1)
	_, err := w.halting(inbox.Config{MaxAttempts: 1}).Batch(func(context.Context, pgx.Tx, []event.Event) error {
		return inbox.Of(some(1)[0], errBad)
	}).Handle(t.Context(), events)
	if halted(t, err, events[0].ID); !strings.Contains(err.Error(), "is none of a batch of 1") {
		t.Error(err)
	}
}

// TestBatchMayBeSorted: an effect sorts its slice, as it may, and names an event. That one fails, and no other.
func TestBatchMayBeSorted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	events := some(5)
	for i := range events {
		events[i].Key = strconv.Itoa(i)
	}
	h := w.inbox(inbox.Config{}).Batch(func(ctx context.Context, tx pgx.Tx, batch []event.Event) error {
		slices.Reverse(batch)
		for _, e := range batch {
			switch e.ID {
			case events[1].ID:
				return inbox.Of(e, outcome.Terminal("bad", errBad))
			case events[3].ID:
				return inbox.Of(e, inbox.Skip)
			}
		}
		return writeAll(ctx, tx, batch)
	})
	same(t, "outcomes", handle(t, h, events), []inbox.Outcome{
		inbox.Applied, inbox.Parked, inbox.Applied, inbox.Skipped, inbox.Applied,
	})
}

// TestTransactionIsTheInboxs: an effect that ends or breaks the transaction fails, and its event stays undecided.
func TestTransactionIsTheInboxs(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]inbox.Effect{
		"commit":   func(ctx context.Context, tx pgx.Tx, _ event.Event) error { _ = tx.Commit(ctx); return nil },
		"rollback": func(ctx context.Context, tx pgx.Tx, _ event.Event) error { _ = tx.Rollback(ctx); return nil },
		"swallowed error": func(ctx context.Context, tx pgx.Tx, _ event.Event) error {
			_, _ = tx.Exec(ctx, "select 1/0")
			return nil
		},
		"commit by SQL": func(ctx context.Context, tx pgx.Tx, _ event.Event) error {
			_, _ = tx.Exec(ctx, "commit")
			return nil
		},
		"rollback by SQL": func(ctx context.Context, tx pgx.Tx, _ event.Event) error {
			_, _ = tx.Exec(ctx, "rollback")
			return nil
		},
		"open rows": func(ctx context.Context, tx pgx.Tx, _ event.Event) error {
			_, _ = tx.Query(ctx, "select 1")
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			events := some(2)
			out, err := w.halting(inbox.Config{MaxAttempts: 2}).Each(do).Handle(t.Context(), events)
			halted(t, err, events[0].ID)
			same(t, "outcomes", out, repeat(inbox.Undecided, 2))
		})
	}
}

// TestEndOfTransactionIsNotSent: a statement that would end the transaction is refused before it is sent. Sent, it
// would commit the ids of the batch's other events without their effects.
func TestEndOfTransactionIsNotSent(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(context.Context, pgx.Tx) error{
		"exec": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "commit")
			return err
		},
		"query": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Query(ctx, "rollback")
			return err
		},
		"row": func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, "-- done\ncommit").Scan()
		},
		"batch": func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue("select 1")
			b.Queue("commit")
			return tx.SendBatch(ctx, b).Close()
		},
		"prepare": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Prepare(ctx, "done", "commit")
			return err
		},
		"savepoint": func(ctx context.Context, tx pgx.Tx) error {
			tx, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, "end")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, events := newWorld(t), keyed("a", "b", "c")
			out := handle(t, w.inbox(inbox.Config{}).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
				if e.ID != events[1].ID {
					return write(ctx, tx, e)
				}
				if err := end(ctx, tx); err == nil {
					t.Error("no error says that it was refused")
				}
				return nil
			}), events)
			same(t, "outcomes", out, []inbox.Outcome{inbox.Applied, inbox.Parked, inbox.Applied})
			same(t, "effects", w.effects(), ids([]event.Event{events[0], events[2]}))
			same(t, "parked", w.parked(), []string{"failed " + inbox.CodeTransaction + " " + events[1].ID.String()})
		})
	}
}

func TestSavepointsOfAnEffect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	events := some(3)
	handle(t, w.halting(inbox.Config{}).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		sp, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := sp.Exec(ctx, "insert into effect (id) values (null)"); err == nil {
			return errors.New("null was accepted")
		}
		if err := sp.Rollback(ctx); err != nil {
			return err
		}
		if sp, err = tx.Begin(ctx); err != nil {
			return err
		}
		if err := write(ctx, sp, e); err != nil {
			return err
		}
		lo := tx.LargeObjects()
		if _, err := lo.Create(ctx, 0); err != nil {
			return err
		}
		return sp.Commit(ctx)
	}), events)
	same(t, "effects", w.effects(), ids(events))
}

func TestCancelledHandleKeepsNothingOfTheOpenTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	events := some(4)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, err := w.halting(inbox.Config{MaxAttempts: 100, Backoff: time.Hour}).Each(func(ctx context.Context, tx pgx.Tx,
		e event.Event,
	) error {
		if e.ID == events[2].ID {
			cancel()
			return errBad
		}
		return write(ctx, tx, e)
	}).Handle(ctx, events)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	same(t, "outcomes", out, repeat(inbox.Undecided, 4))
	same(t, "effects", w.effects(), nil)
}

func TestDeferredConstraintIsSplit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, "create table taken (id uuid unique deferrable initially deferred)")
	events := some(8)
	w.Exec(t, "insert into taken values ($1)", events[5].ID.String())
	out, err := w.halting(inbox.Config{MaxAttempts: 2}).Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		_, err := tx.Exec(ctx, "insert into taken values ($1)", e.ID.String())
		return err
	}).Handle(t.Context(), events)
	halted(t, err, events[5].ID)
	same(t, "outcomes", out, append(repeat(inbox.Applied, 5), repeat(inbox.Undecided, 3)...))
}

func TestP9_3_DeadlocksSpendNoAttempt(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), &retries{}
	w.Exec(t, "create table account (n int primary key)")
	w.Exec(t, "insert into account values (1), (2)")
	events, lock := some(1), "select from account where n = $1 for update"
	hasTwo, deadlock, over, first := make(chan struct{}), make(chan struct{}), make(chan struct{}), true
	in := w.halting(inbox.Config{MaxAttempts: 1, LockTimeout: -1, Observer: r.observer()})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		handle(t, in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
			if !first {
				<-over // it could take row 2 again before the other session wakes: a deadlock that none sees
			}
			_, err := tx.Exec(ctx, "set local deadlock_timeout = '1ms'")
			if _, e2 := tx.Exec(ctx, lock, 2); err != nil || e2 != nil {
				return errors.Join(err, e2)
			}
			if first {
				first = false
				close(hasTwo)
				<-deadlock
			}
			if _, err := tx.Exec(ctx, lock, 1); err != nil {
				return outcome.Terminal("wrapped", err) // a deadlock costs no attempt, even wrapped as Terminal
			}
			return write(ctx, tx, e)
		}), events)
	})
	<-hasTwo
	conn := w.Connect(t)
	if _, err := conn.Exec(t.Context(), "begin; set local deadlock_timeout = '1h'; select from account where n = 1 "+
		"for update"); err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		if _, err := conn.Exec(t.Context(), lock, 2); err != nil {
			t.Error("the other session was the deadlock's victim:", err)
		}
		_, _ = conn.Exec(t.Context(), "rollback")
		close(over)
	})
	pgtest.AwaitBlocked(t, w.DB, conn.PgConn().PID())
	close(deadlock)
	wg.Wait()
	same(t, "effects", w.effects(), ids(events))
	if r.count("conflict") == 0 {
		t.Error("there was no deadlock")
	}
}

func TestTypesAndJSON(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	type payment struct{ Amount int }
	var amounts []int
	h := w.halting(inbox.Config{}).Each(inbox.Types(map[string]inbox.Effect{
		"Paid": inbox.JSON("Paid", func(_ context.Context, _ pgx.Tx, _ event.Event, p payment) error {
			amounts = append(amounts, p.Amount)
			return nil
		}),
	}))
	good, malformed, unknown := some(1), some(1), some(1)
	good[0].Type, good[0].Payload = "Paid", []byte(`{"amount":7}`)
	malformed[0].Type, malformed[0].Payload = "Paid", []byte(`{"amount":"secret"}`)
	handle(t, h, good)
	same(t, "amounts", amounts, []int{7})
	_, err := h.Handle(t.Context(), malformed)
	if _, code := outcome.Of(halted(t, err, malformed[0].ID)); code != inbox.CodeMalformed ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("malformed: %v", err)
	}
	_, err = h.Handle(t.Context(), unknown)
	if _, code := outcome.Of(halted(t, err, unknown[0].ID)); code != inbox.CodeUnknownType {
		t.Errorf("unknown type: %v", err)
	}
	alone := w.halting(inbox.Config{}).Each(inbox.JSON("Paid", func(_ context.Context, _ pgx.Tx, _ event.Event,
		p payment,
	) error {
		amounts = append(amounts, p.Amount)
		return nil
	}))
	other := some(1)
	other[0].Type, other[0].Payload = "Refunded", []byte(`{"amount":7}`)
	_, err = alone.Handle(t.Context(), other)
	if _, code := outcome.Of(halted(t, err, other[0].ID)); code != inbox.CodeUnknownType || len(amounts) != 1 {
		t.Errorf("another type, whose payload parses: %v, amounts %v", err, amounts)
	}
	h = w.halting(inbox.Config{}).Each(inbox.Types(
		map[string]inbox.Effect{"*": func(context.Context, pgx.Tx, event.Event) error { return inbox.Skip }}))
	same(t, "default", handle(t, h, unknown), repeat(inbox.Skipped, 1))
}

// TestP9_3_PartitionEndsDuringEffect: Handle's ctx ends before the effect returns. The partition may have another owner
// by then, so nothing is committed.
func TestP9_3_PartitionEndsDuringEffect(t *testing.T) {
	t.Parallel()
	w, events := newWorld(t), some(6)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := w.inbox(inbox.Config{}).Batch(func(ctx context.Context, tx pgx.Tx, batch []event.Event) error {
		if batch[0].ID == events[3].ID {
			defer cancel()
		}
		return writeAll(ctx, tx, batch)
	})
	handle(t, h, events[:3]) // the next batch does not write the progress, so only COMMIT follows its effect
	out, err := h.Handle(ctx, events[3:])
	if !errors.Is(err, context.Canceled) {
		t.Errorf("outcomes %v, error %v", out, err)
	}
	if n := len(w.effects()); n != 3 {
		t.Errorf("%d effects were committed for a call that had ended", n-3)
	}
}

// TestCallbacksThatPanic: what an Observer's callback does says nothing about an event. Its panic is logged with its
// stack, and the work goes on.
func TestCallbacksThatPanic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := &syncBuilder{}
	var calls atomic.Int64
	in := w.inbox(quick(inbox.Config{
		MaxAttempts: 2, Logger: slog.New(slog.NewTextHandler(log, nil)),
		Observer: inbox.Observer{
			Handled:    func(inbox.HandledInfo) { calls.Add(1); panic("hunter2") },
			Retried:    func(inbox.RetriedInfo) { calls.Add(1); panic("hunter2") },
			Parked:     func(inbox.ParkedInfo) { calls.Add(1); panic("hunter2") },
			Released:   func(inbox.ReleasedInfo) { calls.Add(1); panic("hunter2") },
			Maintained: func(inbox.MaintainedInfo) { calls.Add(1); panic("hunter2") },
		},
	}))
	events := keyed("a", "b", "c")
	fails := true
	h := in.Each(func(ctx context.Context, tx pgx.Tx, e event.Event) error {
		if fails && e.ID == events[1].ID {
			return errBad
		}
		return write(ctx, tx, e)
	})
	same(t, "outcomes", handle(t, h, events), []inbox.Outcome{inbox.Applied, inbox.Parked, inbox.Applied})
	if got := pgtest.One[int](t, w.DB, "select attempts from inbox_parked"); got != 2 {
		t.Errorf("parked after %d runs", got)
	}
	fails = false
	w.releaseKey("b", 1)
	if err := inbox.ReleaseOnce(t.Context(), in); err != nil {
		t.Error(err)
	}
	if err := in.Maintain(t.Context()); err != nil {
		t.Error(err)
	}
	same(t, "effects", w.effects(), []uuid.UUID{events[0].ID, events[2].ID, events[1].ID})
	for _, name := range []string{"Handled", "Retried", "Parked", "Released", "Maintained"} {
		if !strings.Contains(log.String(), "callback=Observer."+name+" ") {
			t.Errorf("nothing is said of %s", name)
		}
	}
	if !strings.Contains(log.String(), "failing_test.go") || strings.Contains(log.String(), "hunter2") {
		t.Errorf("no stack in the log, or the value:\n%s", log)
	}
}

// A table gets a column while sessions have statements of it: no event is to blame.
func TestP9_3_ColumnIsAdded(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), &retries{}
	h := w.halting(inbox.Config{MaxAttempts: 1, Observer: r.observer()}).Each(func(ctx context.Context, tx pgx.Tx,
		e event.Event,
	) error {
		_, err := tx.Exec(ctx, "insert into effect (id) values ($1) returning *", e.ID.String())
		return err
	})
	events := some(6)
	same(t, "before", handle(t, h, events[:3]), repeat(inbox.Applied, 3))
	w.Exec(t, "alter table effect add column more int")
	same(t, "after", handle(t, h, events[3:]), repeat(inbox.Applied, 3))
	same(t, "effects", w.effects(), ids(events))
	if r.count("conflict") != 1 {
		t.Errorf("retries %v", r.list)
	}
}
