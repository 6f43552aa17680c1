package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/internal/pgerr"
)

// Off is the address that opens no listener.
const Off = "off"

// Listen opens a listener for [Serve] at "host:port". For [Off] it returns nil.
func Listen(address string) (net.Listener, error) {
	if address == Off {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening at %q: want host:port that is free, or %q: %w", address, Off, err)
	}
	return l, nil
}

// Serve serves HTTP on a listener until ctx ends, and then gives running requests up to three seconds. It closes the
// listener. Nothing outlives it. With a nil listener it only waits for ctx.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	return serve(ctx, l, h, 3*time.Second)
}

func serve(ctx context.Context, l net.Listener, h http.Handler, grace time.Duration) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	server := &http.Server{
		Handler: h,
		// A silent client must not hold a goroutine.
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, IdleTimeout: time.Minute,
		// Longer than a CPU profile takes.
		WriteTimeout:   90 * time.Second,
		MaxHeaderBytes: 64 << 10,
		// net/http logs broken clients, which is no news for operators.
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serving %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if server.Shutdown(ending) != nil {
		_ = server.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", l.Addr(), err)
	}
	return nil
}

// Health is what a program reports of itself over HTTP, and how it starts. Errors appear in the answers: they must not
// contain secrets.
type Health struct {
	// Prepare creates what the program needs, such as its tables. Run calls it again while the database is unreachable
	// or refuses the connection. Nil: nothing.
	Prepare func(ctx context.Context) error
	// Ready returns nil when the program can do its work. It is called after Prepare, at most once a second, with two
	// seconds of time. Nil: always ready. Leave Kafka out of it: no other process would be more ready.
	Ready func(ctx context.Context) error
	// Moving returns nil unless work waits and none gets done: see [Moving] for a consumer's; a relay's is an error
	// when its Stalled is longer than you accept. Nil: always moving.
	Moving func() error
	// Metrics answers /metrics. Nil: 404.
	Metrics http.Handler
	// Logger logs why the database cannot be used at the start: at once, each minute, and when the reason changes.
	// Default slog.Default().
	Logger *slog.Logger
}

// Handler answers /healthz (200 while the process lives), /readyz and /healthz/moving (200, or 503 and why), and
// /metrics.
func (h Health) Handler() http.Handler { return h.handler(nil, new(atomic.Pointer[error])) }

// Run serves Handler's paths, and rest for all other paths (nil: 404), on a listener of [Listen]. It runs Prepare, and
// then the parts concurrently, until ctx ends and all have returned, or until one fails. Running requests then have 20
// seconds to finish.
//
// Until Prepare has succeeded, /healthz answers 200, /readyz 503 with the reason, and rest is answered with 503 and
// Retry-After: the request was not handled. A part that returns nil does not end the others. Run closes the listener,
// and returns the first error, nil after the end of ctx.
func (h Health) Run(ctx context.Context, l net.Listener, rest http.Handler,
	parts ...func(context.Context) error,
) error {
	var starting atomic.Pointer[error]
	starting.Store(&errStarting)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serve(ctx, l, h.handler(rest, &starting), drain) })
	g.Go(func() error {
		if err := h.prepare(ctx, &starting); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		starting.Store(nil)
		for _, part := range parts {
			g.Go(func() error { return part(ctx) })
		}
		return nil
	})
	return g.Wait()
}

// prepare retries while the database cannot be used, and keeps logging why.
func (h Health) prepare(ctx context.Context, starting *atomic.Pointer[error]) error {
	if h.Prepare == nil {
		return nil
	}
	log := h.Logger
	if log == nil {
		log = slog.Default()
	}
	var said time.Time
	var code string
	pace := backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
	return backoff.Retry(func() error {
		err := h.Prepare(ctx)
		if err == nil || ctx.Err() != nil || !pgerr.Away(err) {
			if err != nil {
				err = backoff.Permanent(err)
			}
			return err
		}
		if what := pgerr.Refused(err); what != "" {
			err = fmt.Errorf("%s: %w", what, err)
		}
		why := fmt.Errorf("%w: %w", errStarting, err)
		starting.Store(&why)
		if now := pgerr.Code(err); now != code || time.Since(said) >= time.Minute {
			said, code = time.Now(), now
			log.Error("the database cannot be used; waiting for it", "sqlstate", code, "error", err)
		}
		return err
	}, backoff.WithContext(pace, ctx))
}

// drain is how long requests may run after the end of ctx: as long as a consumer's handlers by default.
const drain = 20 * time.Second

var errStarting = errors.New("starting: waiting for the database")

func (h Health) handler(rest http.Handler, starting *atomic.Pointer[error]) http.Handler {
	ready, moving := func(context.Context) error { return nil }, func() error { return nil }
	if h.Ready != nil {
		ready = cached(h.Ready)
	}
	if h.Moving != nil {
		moving = h.Moving
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if why := starting.Load(); why != nil {
			answer(w, *why)
			return
		}
		answer(w, ready(r.Context()))
	})
	mux.HandleFunc("GET /healthz/moving", func(w http.ResponseWriter, _ *http.Request) { answer(w, moving()) })
	if h.Metrics != nil {
		mux.Handle("GET /metrics", h.Metrics)
	}
	if rest != nil {
		mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
			if starting.Load() != nil {
				tryAgain(w)
				return
			}
			rest.ServeHTTP(w, r)
		})
	}
	return mux
}

// tryAgain is the answer of package httpedge to a request that was not handled.
func tryAgain(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusServiceUnavailable)
	fmt.Fprintf(w, `{"type":"about:blank","title":%q,"status":%d,"code":"TRY_AGAIN","detail":%q}`+"\n",
		http.StatusText(http.StatusServiceUnavailable), http.StatusServiceUnavailable, errStarting)
}

// stalledAfter is how long records may wait while none is processed, or a consumer may be outside of its group, before
// Moving fails. The alert EffectonceConsumerStalled has the same threshold.
const stalledAfter = 2 * time.Minute

// Moving returns a function for [Health].Moving. It fails when a partition of the consumer is halted, when records wait
// and none was processed for two minutes, or when the consumer was outside of its group for two minutes: its topics are
// missing, or it cannot reach Kafka or its database.
func Moving(c *consumer.Consumer) func() error { return func() error { return moving(c.Status()) } }

// moving returns an error if a partition is halted, or no record was processed for stalledAfter.
func moving(s consumer.Status) error {
	if halted := s.Halted(); len(halted) > 0 {
		h := halted[0]
		return fmt.Errorf("halted partitions: %d, the first is %s/%d at offset %d, event %s", len(halted), h.Topic,
			h.ID, h.Offset, h.EventID)
	}
	if out := time.Since(s.OutSince); !s.OutSince.IsZero() && out >= stalledAfter {
		why := "the log says what it waits for"
		if len(s.Missing) > 0 {
			why = "topics are missing: " + strings.Join(s.Missing, ", ")
		}
		if s.Down {
			why = "Kafka cannot be used: " + s.LastError
		}
		return fmt.Errorf("not in the group for %v: %s", out.Round(time.Second), why)
	}
	if s.StalledSince.IsZero() || time.Since(s.StalledSince) < stalledAfter {
		return nil
	}
	var lag int64
	handling := "no handler runs"
	for _, p := range s.Partitions {
		lag += max(p.Lag, 0)
		if since := p.HandlingSince; !since.IsZero() {
			handling = fmt.Sprintf("the handler of %s has been running for %v", p,
				time.Since(since).Round(time.Second))
		}
	}
	return fmt.Errorf("no record was processed for %v although %d records wait: %s",
		time.Since(s.StalledSince).Round(time.Second), lag, handling)
}

func answer(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, err)
		return
	}
	fmt.Fprintln(w, "ok")
}

// cached limits calls to one a second: probes must not become load.
func cached(ask func(context.Context) error) func(context.Context) error {
	var (
		mu   sync.Mutex
		at   time.Time
		last error
	)
	return func(ctx context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if !at.IsZero() && time.Since(at) < time.Second {
			return last
		}
		// Other clients share the answer, so it outlives the request that asked first.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		last = ask(ctx)
		at = time.Now()
		return last
	}
}
