package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// strictServer is a Postgres that requires TLS and a password of every user but the superuser.
type strictServer struct {
	*pgtest.Server
	db   *pgtest.DB
	ca   *kafkatest.Authority
	root string // file with the CA's certificate
}

func newStrictServer(t *testing.T) *strictServer {
	t.Helper()
	s := &strictServer{Server: pgtest.NewServer(t), ca: kafkatest.NewAuthority(t)}
	s.db = s.Database(t, migrations.Outbox, migrations.Inbox)
	s.root = s.ca.File(t)
	s.db.Exec(t, `set password_encryption = 'scram-sha-256'`)
	s.db.Exec(t, `create role app login superuser`)
	s.password(t, canary)
	s.serve(t, s.ca, time.Now().Add(time.Hour))
	s.UseHBA(t, "hostssl all all 127.0.0.1/32 scram-sha-256")
	pgtest.Await(t, "the server wants TLS", func() (bool, error) {
		_, _, stderr := command(t, s.env(t, "sslmode", "disable"), "status")
		return strings.Contains(stderr, "no pg_hba.conf entry") && strings.Contains(stderr, "no encryption"), nil
	})
	return s
}

// serve gives the server a certificate for new connections.
func (s *strictServer) serve(t *testing.T, ca *kafkatest.Authority, until time.Time, hosts ...string) {
	t.Helper()
	cert, key := ca.IssuePEM(t, until, hosts...)
	s.UseTLS(t, cert, key)
}

func (s *strictServer) password(t *testing.T, text string) {
	t.Helper()
	s.db.Exec(t, fmt.Sprintf(`alter role app password '%s'`, text))
}

// env is the environment of a command that connects as app with verify-full; pairs change the URL's query.
func (s *strictServer) env(t *testing.T, pairs ...string) environment {
	t.Helper()
	u, err := url.Parse(s.db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("app", canary)
	q := url.Values{"sslmode": {"verify-full"}, "sslrootcert": {s.root}}
	for i := 0; i < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	return settings(s.db, deadBroker).with("RELAY_DATABASE_URL", u.String())
}

// TestPostgresTLS is one test, because it has its own server. F20: a refused connection is reported with the remedy,
// parks no event, and works again when the cause is removed.
func TestPostgresTLS(t *testing.T) {
	t.Parallel()
	s := newStrictServer(t)
	ok := func(what string, env environment) {
		t.Helper()
		if code, _, stderr := command(t, env, "status"); code != codeOK {
			t.Errorf("%s: exit code %d: %s", what, code, stderr)
		}
	}
	refused := func(what string, env environment, want string) {
		t.Helper()
		pgtest.Await(t, what+" is refused", func() (bool, error) {
			code, stdout, stderr := command(t, env, "status")
			if strings.Contains(stdout+stderr, canary) {
				t.Errorf("%s: the password is in the output: %s%s", what, stdout, stderr)
			}
			return code != codeOK && strings.Contains(stderr, want), nil
		})
	}
	ok("the right certificate", s.env(t))
	refused("another CA", s.env(t, "sslrootcert", kafkatest.NewAuthority(t).File(t)),
		"stands on another CA than sslrootcert's")
	refused("the system's CAs", s.env(t, "sslrootcert", "system"), "stands on another CA")
	refused("a wrong password", with(t, s.env(t), func(u *url.URL) { u.User = url.UserPassword("app", canary+"x") }),
		"Postgres refuses this user or password")
	byCommand := with(t, s.env(t), func(u *url.URL) { u.User = url.User("app") })
	ok("a command's password", byCommand.with("RELAY_DATABASE_PASSWORD_COMMAND", "echo "+canary))
	refused("a command's wrong password", byCommand.with("RELAY_DATABASE_PASSWORD_COMMAND", "echo "+canary+"x"),
		"Postgres refuses this user or password")
	refused("a command that fails", byCommand.with("RELAY_DATABASE_PASSWORD_COMMAND", "echo "+canary+"; exit 9"),
		"failed (exit status 9): run it by hand")
	refused("a command and a password", byCommand.with("RELAY_DATABASE_PASSWORD_COMMAND", "echo "+canary,
		"RELAY_DATABASE_PASSWORD", canary), "are both set: leave one out")
	s.serve(t, s.ca, time.Now().Add(time.Hour), "db.example")
	refused("another name", s.env(t), "the certificate of Postgres is not for 127.0.0.1")
	ok("another name, not verified", s.env(t, "sslmode", "verify-ca"))
	s.serve(t, s.ca, time.Now().Add(-time.Minute))
	refused("an expired certificate", s.env(t), "the certificate of Postgres has run out")
	s.serve(t, s.ca, time.Now().Add(time.Hour))
	pgtest.Await(t, "the new certificate is taken", func() (bool, error) {
		code, _, _ := command(t, s.env(t), "status")
		return code == codeOK, nil
	})
	t.Run("under a running relay", func(t *testing.T) { s.rotateUnderRelay(t) })
}

// with changes the URL of an environment.
func with(t *testing.T, env environment, change func(*url.URL)) environment {
	t.Helper()
	u, err := url.Parse(env["RELAY_DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	change(u)
	return env.with("RELAY_DATABASE_URL", u.String())
}

// rotateUnderRelay rotates password and certificate under a running relay, to wrong ones at first.
func (s *strictServer) rotateUnderRelay(t *testing.T) {
	topic := kafkatest.Topic(t, 2)
	file := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(canary)
	env := with(t, s.env(t), func(u *url.URL) { u.User = url.User("app") }).with("RELAY_DATABASE_PASSWORD_FILE", file,
		"RELAY_LEASE", "5s",
		"RELAY_KAFKA_BROKERS", strings.Join(kafkatest.Brokers(t), ","), "RELAY_LOG_LEVEL", "debug")
	relay := inProcess(t, env)
	fill(t, s.db, topic, 100)
	awaitDrained(t, s.db)
	// cut ends all connections of the relay, as a pooler or a failover would: from then on it needs new ones.
	cut := func() {
		s.db.Exec(t, `select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app'`)
	}
	pages := ""
	says := func(want string) {
		t.Helper()
		pgtest.Await(t, "the relay logs "+want, func() (bool, error) {
			cut()
			_, body, err := relay.get("/readyz")
			pages += body
			return strings.Contains(body, want), err
		})
	}
	goesOn := func(what string) {
		t.Helper()
		fill(t, s.db, topic, 100, 100)
		awaitDrained(t, s.db)
		relay.awaitPage("/readyz", 200)
		if n := pgtest.One[int](t, s.db, `select count(*) from outbox_parked`); n != 0 {
			t.Errorf("%s parked %d events", what, n)
		}
	}
	s.password(t, canary+"-second")
	says("password authentication failed")
	write(canary + "-second")
	goesOn("a password that was rotated before its file")

	s.serve(t, s.ca, time.Now().Add(-time.Minute))
	says("certificate has expired")
	s.serve(t, s.ca, time.Now().Add(time.Hour))
	goesOn("a certificate that ran out")

	relay.signal()
	if code := relay.end(); code != codeOK {
		t.Errorf("exit code %d", code)
	}
	if strings.Contains(relay.output()+pages, canary) {
		t.Errorf("the password is in the output: %s", relay.output())
	}
}
