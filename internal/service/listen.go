package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	pprof "net/http/pprof"

	"github.com/effectonce/effectonce/internal/loopback"
)

// Off is the address of a listener that is not wanted.
const Off = "off"

// Listen opens the listener of ServeOn at address: "host:port", or "off" for none, which is nil.
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

// ServeOn answers HTTP on a listener of Listen until ctx ends, then lets requests that are under way finish for up to
// three seconds, and closes it. Nothing outlives it. With a nil listener it only waits for ctx.
func ServeOn(ctx context.Context, l net.Listener, h http.Handler) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	server := &http.Server{
		Handler: h,
		// Whoever connects and says nothing must not hold a goroutine for ever.
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, IdleTimeout: time.Minute,
		// Longer than a CPU profile takes.
		WriteTimeout:   90 * time.Second,
		MaxHeaderBytes: 64 << 10,
		// What net/http logs are broken clients: nobody can act on it.
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serving %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if server.Shutdown(grace) != nil {
		_ = server.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", l.Addr(), err)
	}
	return nil
}

// Health is what a program says of itself over HTTP. Errors stand in the answers as they are: they must hold no secret.
type Health struct {
	// Ready returns nil when the program can do its work; it is asked for two seconds at most and once a second at
	// most. Nil: always ready.
	Ready func(ctx context.Context) error
	// Moving returns nil unless work waits and none gets done. Nil: always moving.
	Moving func() error
	// Registry is what /metrics shows. Nil: no /metrics.
	Registry *prometheus.Registry
	// Pprof adds /debug/pprof/, which shows memory's content: to this machine only, whatever address is listened at.
	Pprof bool
}

// Handler answers /healthz (200 while the process lives), /readyz and /healthz/moving (200, or 503 and why), /metrics
// and /debug/pprof/.
func (h Health) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	ready, moving := func(context.Context) error { return nil }, func() error { return nil }
	if h.Ready != nil {
		ready = cached(h.Ready)
	}
	if h.Moving != nil {
		moving = h.Moving
	}
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { answer(w, ready(r.Context())) })
	mux.HandleFunc("GET /healthz/moving", func(w http.ResponseWriter, _ *http.Request) { answer(w, moving()) })
	if h.Registry != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(h.Registry, promhttp.HandlerOpts{}))
	}
	if h.Pprof {
		mux.HandleFunc("/debug/pprof/", onlyHere(pprof.Index))
		mux.HandleFunc("/debug/pprof/cmdline", noCommandLine)
		mux.HandleFunc("/debug/pprof/profile", onlyHere(pprof.Profile))
		mux.HandleFunc("/debug/pprof/symbol", onlyHere(pprof.Symbol))
		mux.HandleFunc("/debug/pprof/trace", onlyHere(pprof.Trace))
	}
	return mux
}

// onlyHere answers requests of this machine only; a forwarded port (ssh -L, kubectl port-forward) counts as here.
func onlyHere(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !loopback.Request(r) {
			http.Error(w, "/debug/pprof/ shows memory's content, and answers to this machine only, as localhost and "+
				"not through a proxy: forward the port", http.StatusForbidden)
			return
		}
		h(w, r)
	}
}

// noCommandLine: a password may stand in the arguments.
func noCommandLine(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "the command line is not shown", http.StatusForbidden)
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

// cached asks once a second at most, whoever asks how often: a probe must not become load.
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
		// The answer is everybody's, so one impatient client's end is not its end.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		last = ask(ctx)
		at = time.Now()
		return last
	}
}
