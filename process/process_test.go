package process_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/effectonce/effectonce/internal/usage"
	"github.com/effectonce/effectonce/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSignals is not parallel: signals are the process's.
func TestSignals(t *testing.T) {
	again := make(chan os.Signal, 1)
	ctx, stop := process.Signals(t.Context(), func(s os.Signal) { again <- s })
	defer stop()
	seen := make(chan os.Signal, 2)
	signal.Notify(seen, syscall.SIGTERM)
	defer signal.Stop(seen)
	raise(t, syscall.SIGTERM)
	<-ctx.Done()
	<-seen
	raise(t, syscall.SIGTERM) // of a supervisor that sends it to the group, too: the drain goes on
	<-seen                    // else the system would deliver the lower number first
	raise(t, os.Interrupt)
	if s := <-again; s != os.Interrupt {
		t.Errorf("the second signal is %v", s)
	}
}

func TestMainCodes(t *testing.T) {
	for name, c := range map[string]struct {
		run  func(ctx context.Context) error
		want int
	}{
		"clean":  {func(context.Context) error { return nil }, process.CodeOK},
		"failed": {func(context.Context) error { return errors.New("as the test wants it") }, process.CodeFailed},
		"usage":  {func(context.Context) error { return usage.Errorf("as the test wants it") }, process.CodeUsage},
		"signal": {
			func(ctx context.Context) error { raise(t, syscall.SIGTERM); <-ctx.Done(); return ctx.Err() },
			process.CodeOK,
		},
		"the terminal goes": {
			func(ctx context.Context) error { raise(t, syscall.SIGHUP); <-ctx.Done(); return ctx.Err() },
			process.CodeOK,
		},
		"signal, and nothing else in parts": {func(ctx context.Context) error {
			raise(t, syscall.SIGTERM)
			<-ctx.Done()
			return fmt.Errorf("all parts: %w", errors.Join(ctx.Err(), ctx.Err()))
		}, process.CodeOK},
		"signal, and one part failed": {func(ctx context.Context) error {
			raise(t, syscall.SIGTERM)
			<-ctx.Done()
			return fmt.Errorf("all parts: %w", errors.Join(ctx.Err(), errors.New("as the test wants it")))
		}, process.CodeFailed},
		"signal and failed": {func(ctx context.Context) error {
			raise(t, syscall.SIGTERM)
			<-ctx.Done()
			return errors.New("as the test wants it")
		}, process.CodeFailed},
	} {
		if got := process.Main(c.run); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestMainSaysThatItStops: a program that drains says at once that it stops and why, and at its end that it stopped.
func TestMainSaysThatItStops(t *testing.T) {
	said := lines{wrote: make(chan struct{}, 9)}
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
	process.Main(func(ctx context.Context) error {
		raise(t, syscall.SIGTERM)
		<-ctx.Done()
		<-said.wrote
		if text := said.String(); !strings.Contains(text, "stopping: what runs may finish") ||
			!strings.Contains(text, "signal=SIGTERM") || strings.Contains(text, "stopped") {
			t.Errorf("while it stops it says %q", text)
		}
		return ctx.Err()
	})
	if text := said.String(); strings.Count(text, "\n") != 2 ||
		!strings.Contains(text, "msg=stopped signal=SIGTERM exit_code=0") {
		t.Errorf("at its end it has said %q", text)
	}
	process.Main(func(context.Context) error { return nil })
	if text := said.String(); strings.Count(text, "\n") != 2 {
		t.Errorf("a program that is done without a signal says %q", text)
	}
}

// lines is a log that may be read while it is written.
type lines struct {
	wrote chan struct{}
	mu    sync.Mutex
	b     strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.wrote <- struct{}{} }()
	return l.b.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func raise(t *testing.T, s os.Signal) {
	t.Helper()
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Signal(s)
	}
	if err != nil {
		t.Error(err)
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	l, err := process.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if _, err := process.Listen(l.Addr().String()); err == nil || !strings.Contains(err.Error(), `or "off"`) {
		t.Errorf("a taken port: %v", err)
	}
	if _, err := process.Listen("nonsense"); err == nil {
		t.Error("an address that is none was taken")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	none, err := process.Listen(process.Off)
	if err == nil {
		err = process.Serve(ctx, none, nil)
	}
	if err != nil {
		t.Errorf("off: %v", err)
	}
}

// TestServe: a request that is under way when the context ends has three seconds to finish, and no other is taken.
func TestServe(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]time.Duration{"in time": 2 * time.Second, "too late": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &pipes{make(chan net.Conn), make(chan struct{})}
				ctx, cancel := context.WithCancel(t.Context())
				entered, left, served := make(chan struct{}), make(chan struct{}), make(chan error, 1)
				go func() {
					served <- process.Serve(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
						close(entered)
						defer close(left)
						<-ctx.Done()
						<-time.After(takes)
						_, _ = io.WriteString(w, "done")
					}))
				}()
				dial := func(context.Context, string, string) (net.Conn, error) {
					select {
					case <-l.closed:
						return nil, net.ErrClosed
					default:
						return l.dial(), nil
					}
				}
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
				body := make(chan string, 1)
				go func() {
					resp, err := client.Get("http://service")
					if err != nil {
						body <- err.Error()
						return
					}
					defer func() { _ = resp.Body.Close() }()
					b, _ := io.ReadAll(resp.Body)
					body <- string(b)
				}()
				<-entered
				cancel()
				began := time.Now()
				synctest.Wait()
				if _, err := client.Get("http://service"); !errors.Is(err, net.ErrClosed) {
					t.Errorf("it still listens: %v", err)
				}
				if got := <-body; (got == "done") != (takes < 3*time.Second) {
					t.Errorf("the request under way got %q", got)
				}
				if err := <-served; err != nil || time.Since(began) > 3*time.Second {
					t.Errorf("it ended after %v: %v", time.Since(began), err)
				}
				<-left
			})
		})
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ready, moving error
		asked := 0
		h := process.Health{
			Ready:  func(context.Context) error { asked++; return ready },
			Moving: func() error { return moving },
			Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "here 0")
			}),
		}.Handler()
		expect := func(path string, status int, text string) {
			t.Helper()
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			if w.Code != status || !strings.Contains(w.Body.String(), text) {
				t.Errorf("%s: %d %q, want %d %q", path, w.Code, w.Body, status, text)
			}
		}
		expect("/healthz", 200, "ok")
		expect("/readyz", 200, "ok")
		expect("/healthz/moving", 200, "ok")
		expect("/metrics", 200, "here 0")
		expect("/", 404, "")
		ready, moving = errors.New("no database"), errors.New("stuck")
		expect("/readyz", 200, "ok") // kept for a second
		expect("/healthz/moving", 503, "stuck")
		if asked != 1 {
			t.Errorf("asked %d times within a second", asked)
		}
		<-time.After(2 * time.Second)
		expect("/readyz", 503, "no database")
		expect("/healthz", 200, "ok")
	})
}

// TestRunBeforePrepare: until Prepare is done the process lives and is not ready, and of a request nothing is done; no
// part runs. While the database is away Prepare is called again.
func TestRunBeforePrepare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &pipes{make(chan net.Conn), make(chan struct{})}
		dial := func(context.Context, string, string) (net.Conn, error) { return l.dial(), nil }
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
		get := func(path string) (int, string, http.Header) {
			res, err := client.Get("http://service" + path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			b, _ := io.ReadAll(res.Body)
			return res.StatusCode, string(b), res.Header
		}
		ctx, cancel := context.WithCancel(t.Context())
		tries, prepare, running, ended := 0, make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			ended <- process.Health{
				Prepare: func(context.Context) error {
					if tries++; tries < 3 {
						return io.ErrUnexpectedEOF // as of a server that is gone
					}
					<-prepare
					return nil
				},
				Logger: slog.New(slog.DiscardHandler),
			}.Run(ctx, l, http.HandlerFunc(count), func(ctx context.Context) error {
				close(running)
				<-ctx.Done()
				return nil
			})
		}()
		synctest.Wait()
		if code, body, _ := get("/healthz"); code != 200 {
			t.Errorf("/healthz before: %d %s", code, body)
		}
		if code, body, _ := get("/readyz"); code != 503 || !strings.Contains(body, "starting") {
			t.Errorf("/readyz before: %d %s", code, body)
		}
		code, body, header := get("/orders")
		var problem struct {
			Status int
			Code   string
		}
		if err := json.Unmarshal([]byte(body), &problem); err != nil || code != 503 || problem.Status != 503 ||
			problem.Code != "TRY_AGAIN" || header.Get("Retry-After") == "" {
			t.Errorf("a request before: %d %s %v, %v", code, body, header, err)
		}
		select {
		case <-running:
			t.Error("a part runs before")
		default:
		}
		close(prepare)
		<-running
		if code, body, _ := get("/readyz"); code != 200 || tries != 3 {
			t.Errorf("/readyz after %d tries: %d %s", tries, code, body)
		}
		if code, body, _ := get("/orders"); code != 200 || body != "read 0 bytes" {
			t.Errorf("a request after: %d %s", code, body)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestRunSaysAgain: a program that waits for its database says so again and again, and not at each try.
func TestRunSaysAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		said, tries := lines{wrote: make(chan struct{}, 99)}, 0
		times := func() int { return strings.Count(said.String(), "level=ERROR") }
		err := process.Health{
			Prepare: func(context.Context) error {
				if tries++; tries < 99 && times() < 3 {
					return io.ErrUnexpectedEOF // as of a server that is gone
				}
				return nil
			},
			Logger: slog.New(slog.NewTextHandler(&said, nil)),
		}.Run(t.Context(), nil, nil, func(context.Context) error { return io.EOF })
		if !errors.Is(err, io.EOF) || times() != 3 || tries < 9 {
			t.Errorf("%v; in %d tries it has said %q", err, tries, said.String())
		}
	})
}

// TestRunEnds: what fails ends the others; the end of ctx is no error, and a part that is done ends nothing.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	broken := errors.New("as the test wants it")
	wait := func(ctx context.Context) error { <-ctx.Done(); return nil }
	fail := func(context.Context) error { return broken }
	done := func(context.Context) error { return nil }
	for name, c := range map[string]struct {
		prepare func(context.Context) error
		parts   []func(context.Context) error
		want    error
	}{
		"prepare fails":     {fail, nil, broken},
		"a part fails":      {nil, []func(context.Context) error{wait, fail}, broken},
		"ended in prepare":  {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, nil, nil},
		"ended":             {nil, []func(context.Context) error{wait}, nil},
		"ended, a part was": {nil, []func(context.Context) error{wait, done}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.want == nil {
				cancel()
			}
			err := process.Health{Prepare: c.prepare}.Run(ctx, nil, nil, c.parts...)
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}
