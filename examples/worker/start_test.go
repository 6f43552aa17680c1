package worker

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestHealthBeforeTheDatabase: a worker that waits for its database at the start is live, and ready once the database
// answers.
func TestHealthBeforeTheDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	proxy := pgtest.NewProxy(t, db.AdminURL)
	proxy.Refuse(true)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pool, ended := pgtest.Pool(t, proxy.URL()), make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{
			DB: pool, Schema: db.Schema, Brokers: []string{"127.0.0.1:1"},
			Listener: listener, Logger: slog.New(logWatcher{slog.DiscardHandler, "waiting for it", waiting}),
		}, inboxOnly)
	}()
	select {
	case <-waiting:
	case err := <-ended:
		t.Fatalf("it ended: %v", err)
	}
	at := "http://" + listener.Addr().String()
	if status, text := get(t, at+"/healthz"); status != http.StatusOK {
		t.Errorf("/healthz is %d while the database is away: %s", status, text)
	}
	if status, text := get(t, at+"/readyz"); status != http.StatusServiceUnavailable ||
		!strings.Contains(text, "waiting for the database") {
		t.Errorf("/readyz is %d while the database is away: %s", status, text)
	}
	proxy.Refuse(false)
	pgtest.Await(t, "the worker to be ready", func() (bool, error) {
		status, _ := get(t, at+"/readyz")
		return status == http.StatusOK, nil
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestRefusedConnections: a worker that Postgres does not let in says so in its log and at /readyz, each time that the
// reason is another, and goes on by itself once it is mended.
func TestRefusedConnections(t *testing.T) {
	t.Parallel()
	const canary = "canary"
	server := pgtest.NewServer(t)
	db := server.Database(t)
	server.UseHBA(t, "host all all 127.0.0.1/32 scram-sha-256")
	db.Exec(t, `create role worker nologin password 'another'`)
	db.Exec(t, `create database closed`)
	db.Exec(t, `grant create on database closed to worker`)
	db.Exec(t, `revoke connect on database closed from public`)
	u, err := url.Parse(db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User, u.Path = url.UserPassword("worker", canary), "/app"
	pgtest.Await(t, "the server wants passwords", func() (bool, error) {
		_, err := pgx.Connect(t.Context(), u.String())
		return err != nil && strings.Contains(err.Error(), "28P01"), nil
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said := lockedText{}
	pool, ended := pgtest.Pool(t, u.String()), make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{
			DB: pool, Schema: "app", Brokers: []string{"127.0.0.1:1"},
			Listener: listener, Logger: slog.New(slog.NewTextHandler(&said, nil)),
		}, inboxOnly)
	}()
	ready := "http://" + listener.Addr().String() + "/readyz"
	for _, c := range []struct{ code, advice, mend string }{
		{"28P01", "refuses this user or password", `alter role worker password '` + canary + `'`},
		{"28000", "refuses this user or password", `alter role worker login`},
		{"3D000", "no such database", `alter database closed rename to app`},
		{"42501", "may not connect", `grant connect on database app to worker`},
	} {
		pgtest.Await(t, c.code+" at /readyz", func() (bool, error) {
			status, text := get(t, ready)
			return status == http.StatusServiceUnavailable && strings.Contains(text, "SQLSTATE "+c.code) &&
				strings.Contains(text, c.advice) && !strings.Contains(text, canary), nil
		})
		pgtest.Await(t, c.code+" in the log", func() (bool, error) {
			line := regexp.MustCompile("level=ERROR .*" + c.advice + ".*SQLSTATE " + c.code)
			return line.MatchString(said.String()), nil
		})
		db.Exec(t, c.mend)
	}
	pgtest.Await(t, "the worker to be ready", func() (bool, error) {
		status, _ := get(t, ready)
		return status == http.StatusOK, nil
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if strings.Contains(said.String(), canary) {
		t.Error("the password is in the log")
	}
}

// inboxOnly is a worker that needs the inbox's tables only.
var inboxOnly = Worker{
	Name: "ledger", Tables: Tables{Sets: []migrations.Set{migrations.Inbox}},
	Handler: func(in *inbox.Inbox) inbox.Handler {
		return in.Each(func(context.Context, pgx.Tx, event.Event) error { return nil })
	},
}

// lockedText is a log that may be read while it is written.
type lockedText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// logWatcher signals a log line that contains text.
type logWatcher struct {
	slog.Handler
	text string
	seen chan struct{}
}

func (h logWatcher) Enabled(context.Context, slog.Level) bool { return true }

func (h logWatcher) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h logWatcher) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, h.text) {
		select {
		case h.seen <- struct{}{}:
		default:
		}
	}
	return nil
}

func get(t *testing.T, url string) (status int, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}
