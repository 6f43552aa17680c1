package service_test

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLogger(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	log, err := service.Logger(&out, "json", "warn")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("no")
	log.Warn("yes", "after", 1500*time.Millisecond)
	if got := out.String(); strings.Contains(got, `"no"`) || !strings.Contains(got, `"msg":"yes","after":"1.5s"`) {
		t.Errorf("logged %s", got)
	}
	for _, wrong := range [][2]string{{"xml", "info"}, {"text", "loud"}, {"text", ""}} {
		if _, err := service.Logger(&out, wrong[0], wrong[1]); err == nil || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%v: %v", wrong, err)
		}
	}
}

// TestSignals is not parallel: signals are the process's.
func TestSignals(t *testing.T) {
	again := make(chan os.Signal, 1)
	ctx, stop := service.Signals(t.Context(), func(s os.Signal) { again <- s })
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
		"clean":  {func(context.Context) error { return nil }, service.CodeOK},
		"failed": {func(context.Context) error { return errors.New("as the test wants it") }, service.CodeFailed},
		"usage":  {func(context.Context) error { return service.Usage("as the test wants it") }, service.CodeUsage},
		"signal": {
			func(ctx context.Context) error { raise(t, syscall.SIGTERM); <-ctx.Done(); return ctx.Err() },
			service.CodeOK,
		},
		"signal and failed": {func(ctx context.Context) error {
			raise(t, syscall.SIGTERM)
			<-ctx.Done()
			return errors.New("as the test wants it")
		}, service.CodeFailed},
	} {
		if got := service.Main(c.run); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
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
	l, err := service.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if _, err := service.Listen(l.Addr().String()); err == nil || !strings.Contains(err.Error(), `or "off"`) {
		t.Errorf("a taken port: %v", err)
	}
	if _, err := service.Listen("nonsense"); err == nil {
		t.Error("an address that is none was taken")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	none, err := service.Listen(service.Off)
	if err == nil {
		err = service.ServeOn(ctx, none, nil)
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
					served <- service.ServeOn(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
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
		registry := prometheus.NewRegistry()
		registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "here"}))
		h := service.Health{
			Ready:  func(context.Context) error { asked++; return ready },
			Moving: func() error { return moving }, Registry: registry,
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
		expect("/debug/pprof/", 404, "")
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

func TestPoolConfig(t *testing.T) {
	t.Parallel()
	if _, err := service.PoolConfig("--db", "postgres://u:p@h:1/d"); err != nil {
		t.Error(err)
	}
	for url, want := range map[string]string{
		"":                                   "--db is missing",
		"mysql://u:secret@h/d":               "begins with postgres://",
		"postgres://u:sec/ret@h/d":           "percent-encode",
		"postgres://u:secret@h:0/d":          "invalid port",
		"postgres://u@h/d?sslmode=secret":    "failed to configure TLS",
		"host=h target_session_attrs=secret": "unknown target_session_attrs value",
		"secret":                             "keyword/value",
	} {
		_, err := service.PoolConfig("--db", url)
		var usage *service.UsageError
		if err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, &usage) {
			t.Errorf("%s: %v, want %s", url, err, want)
		} else if strings.Contains(err.Error(), "sec") {
			t.Errorf("%s: the error repeats it: %v", url, err)
		}
	}
}

// TestDatabaseIsFollowed: user, password and certificates are those of the moment of a connection; the place is not.
func TestDatabaseIsFollowed(t *testing.T) {
	t.Parallel()
	url, password := write(t, "postgres://first:one@h:1/d"), write(t, "two")
	for _, own := range []bool{false, true} {
		d := service.Database{URL: secret.InFile(url)}
		if own {
			d.Password = secret.InFile(password)
		}
		cfg, err := d.PoolConfig("--db")
		if err != nil {
			t.Fatal(err)
		}
		connect := func(user, password string) {
			t.Helper()
			conn := cfg.ConnConfig.Copy()
			if err := cfg.BeforeConnect(t.Context(), conn); err != nil || conn.User != user ||
				conn.Password != password {
				t.Errorf("%s %s, %v; want %s %s", conn.User, conn.Password, err, user, password)
			}
		}
		overwrite := func(path, content string) {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		overwrite(password, "two")
		if connect("first", map[bool]string{false: "one", true: "two"}[own]); !own {
			overwrite(url, "postgres://second:three@h:1/d")
			connect("second", "three")
		} else {
			overwrite(password, "four\n")
			connect("first", "four")
			overwrite(password, "")
			if err := cfg.BeforeConnect(t.Context(), cfg.ConnConfig.Copy()); !errors.Is(err, secret.ErrEmptyFile) {
				t.Errorf("a file that is being replaced: %v", err)
			}
			overwrite(password, "four")
		}
		overwrite(url, "postgres://first:one@elsewhere:1/d")
		if err := cfg.BeforeConnect(t.Context(), cfg.ConnConfig.Copy()); err == nil ||
			!strings.Contains(err.Error(), "another server or database") {
			t.Errorf("another host: %v", err)
		}
		overwrite(url, "postgres://first:one@h:1/d")
	}
}

// TestDisableIsRefused: sslmode=disable to another machine needs somebody who says so, also when it comes by a
// rotation.
func TestDisableIsRefused(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://u:canary@db:1/d?sslmode=disable":                    "to db,",
		"postgres://u:canary@10.0.0.1:1/d?sslmode=disable":              "to 10.0.0.1,",
		"postgres://u:canary@localhost:1,other:1/d?sslmode=disable":     "to other,",
		"postgres://u:canary@localhost:1,127.0.0.1:1/d?sslmode=disable": "",
		"host=/run/postgresql user=u sslmode=disable":                   "",
		"postgres://u:canary@db:1/d":                                    "", // prefer: run warns
		"postgres://u:canary@db:1/d?sslmode=allow":                      "",
		"postgres://u:canary@db:1/d?sslmode=require":                    "",
		"postgres://u:canary@db:1/d?sslmode=verify-full":                "",
	} {
		_, err := service.Database{URL: secret.Of(url)}.PoolConfig("--db")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "sslmode=verify-full")) {
			t.Errorf("%s: %v", url, err)
		}
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("the error repeats the password: %v", err)
		}
		if _, err := (service.Database{URL: secret.Of(url), AllowPlain: true}).PoolConfig("--db"); err != nil {
			t.Errorf("%s, allowed: %v", url, err)
		}
	}
	path := write(t, "postgres://u:canary@db:1/d")
	cfg, err := service.Database{URL: secret.InFile(path)}.PoolConfig("--db")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("postgres://u:canary@db:1/d?sslmode=disable"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cfg.BeforeConnect(t.Context(), cfg.ConnConfig.Copy()); err == nil ||
		!strings.Contains(err.Error(), "sslmode=disable") {
		t.Errorf("a rotation to the clear: %v", err)
	}
}

// TestCertificatesAreFollowed: a CA file that is replaced counts from the next connection on.
func TestCertificatesAreFollowed(t *testing.T) {
	t.Parallel()
	path := kafkatest.NewAuthority(t).File(t)
	cfg, err := service.Database{URL: secret.Of("postgres://u@h/d?sslmode=verify-full&sslrootcert=" + path)}.PoolConfig(
		"--db")
	if err != nil {
		t.Fatal(err)
	}
	roots := func() *x509.CertPool {
		t.Helper()
		conn := cfg.ConnConfig.Copy()
		if err := cfg.BeforeConnect(t.Context(), conn); err != nil {
			t.Fatal(err)
		}
		return conn.TLSConfig.RootCAs
	}
	first := roots()
	if !first.Equal(roots()) {
		t.Error("the same file, other certificates")
	}
	if err := os.WriteFile(path, kafkatest.NewAuthority(t).PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	if first.Equal(roots()) {
		t.Error("the old certificates")
	}
}
