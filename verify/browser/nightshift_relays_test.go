package browser

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay"
)

// failuresOfRelays are those of relays that run, and of what they stand on.
var failuresOfRelays = []failure{
	{
		name: "the tables are of a newer release than the pages and relays", check: "schema outbox",
		says: "start a newer binary",
		stage: func(n *night) {
			n.own()
			n.relay(n.db.Pool, relay.Config{Name: "relay-1"})
			n.append(n.topic, "k", "{}")
			n.until(isPublished)
			n.produces()
			n.db.Exec(n.t, "insert into effectonce_migration (version_id, is_applied) values (10099, true)")
			n.db.Exec(n.t, "comment on table outbox_event is 'effectonce: binaries from 10099 on'")
			n.outside = func() {
				n.db.Exec(n.t, "comment on table outbox_event is 'effectonce: binaries from 10001 on'")
			}
		},
		mend: elsewhere, do: "newer binaries were started",
	},
	{
		name: "a second relay has the brokers of another Kafka cluster", check: "relays", says: "relay-of-staging",
		alert: "RelayOutage",
		stage: func(n *night) {
			n.own()
			n.relay(n.db.Pool, relay.Config{Name: "relay-1"})
			n.append(n.topic, "k", "{}")
			n.until(isPublished)
			n.produces()
			ours := n.brokers
			n.brokers = kafkatest.NewOther(n.t, 1).Brokers() // without the topic
			n.outside = n.relay(n.db.Pool, relay.Config{Name: "relay-of-staging"})
			n.brokers = ours
		},
		mend: elsewhere, do: "it was stopped",
	},
	{
		name: "the grants of the relay's role were revoked while it runs", check: "leases", says: "it lacks",
		alert: "RelayOutage",
		stage: func(n *night) {
			n.own()
			pool := n.through(n.role(""))
			user := pool.Config().ConnConfig.User
			n.relay(pool, relay.Config{Name: "relay-1"})
			n.append(n.topic, "k", "{}")
			n.until(isPublished)
			n.produces()
			n.db.Exec(n.t, "revoke all on all tables in schema public from "+user)
			n.outside = func() {
				n.db.Exec(n.t, "grant select, insert, update, delete on all tables in schema public to "+user)
			}
		},
		mend: elsewhere, do: "they were granted",
	},
	{
		name: "the password of the relay's role was rotated", check: "leases", says: "it refuses them",
		alert: "RelayOutage",
		stage: func(n *night) {
			n.own()
			to, err := url.Parse(n.role("password 'old'"))
			if err != nil {
				n.t.Fatal(err)
			}
			user := to.User.Username()
			to.User = url.UserPassword(user, "old")
			n.server.UseHBA(n.t, "host all "+user+" 127.0.0.1/32 scram-sha-256")
			n.relay(n.through(to.String()), relay.Config{Name: "relay-1"})
			n.append(n.topic, "k", "{}")
			n.until(isPublished)
			n.produces()
			n.db.Exec(n.t, "alter role "+user+" password 'new'")
			n.db.Exec(n.t, "select pg_terminate_backend(pid) from pg_stat_activity where usename = $1", user)
			n.outside = func() { n.db.Exec(n.t, "alter role "+user+" password 'old'") }
		},
		mend: elsewhere, do: "the relay got the new one",
	},
	{
		name: "the certificate of Postgres has run out", check: thisDatabase,
		says:  "the certificate of Postgres has run out",
		alert: "RelayOutage",
		stage: func(n *night) {
			n.own()
			ca := kafkatest.NewAuthority(n.t)
			until := func(end time.Time) {
				cert, key := ca.IssuePEM(n.t, end)
				n.server.UseTLS(n.t, cert, key)
			}
			until(time.Now().Add(time.Hour))
			n.pool = n.through(n.role("") + "&sslmode=verify-full&sslrootcert=" + ca.File(n.t))
			n.relay(n.pool, relay.Config{Name: "relay-1"})
			n.append(n.topic, "k", "{}")
			n.until(isPublished)
			n.produces()
			until(time.Now().Add(-time.Minute))
			n.db.Exec(n.t, "select pg_terminate_backend(pid) from pg_stat_activity where usename = $1",
				n.pool.Config().ConnConfig.User)
			n.outside = func() { until(time.Now().Add(time.Hour)) }
		},
		mend: elsewhere, do: "it was renewed",
	},
	{
		name: "the certificate of the brokers has run out", check: "kafka",
		says:  "the broker's certificate has run out",
		alert: "RelayOutage",
		stage: func(n *night) {
			n.own()
			brokers := kafkatest.NewSecure(n.t)
			n.topic = kafkatest.TopicAt(n.t, brokers.Brokers(), 2)
			cert, key := brokers.CA.Issue(n.t, time.Now().Add(time.Hour))
			n.brokers = []string{brokers.MTLS}
			conn, err := kafkaconn.Config{
				Brokers: n.brokers, TLS: true, CAFile: brokers.CA.File(n.t), CertFile: cert, KeyFile: key,
			}.New(nil)
			if err != nil {
				n.t.Fatal(err)
			}
			n.dial = conn.Dial
			n.relay(n.db.Pool, relay.Config{Name: "relay-1"})
			n.append(n.topic, "k", "{}")
			n.until(isPublished)
			n.produces()
			brokers.UseCertificate(n.t, brokers.CA, time.Now().Add(-time.Minute))
			brokers.Stop(0)
			brokers.Start(n.t, 0)
			n.outside = func() { brokers.UseCertificate(n.t, brokers.CA, time.Now().Add(time.Hour)) }
		},
		mend: elsewhere, do: "it was renewed",
	},
	{
		name: "an older relay runs beside a newer one", check: "versions", says: "relays are of different versions",
		stage: func(n *night) {
			n.own()
			n.db.Exec(n.t, `create function older() returns trigger language plpgsql as
				$$ begin new.version := 'v0.0.9'; return new; end $$`)
			n.db.Exec(n.t, `create trigger older before insert or update on relay_member for each row
				when (new.name = 'relay-1') execute function older()`)
			n.outside = n.relay(n.db.Pool, relay.Config{Name: "relay-1"})
			n.relay(n.db.Pool, relay.Config{Name: "relay-2"})
			n.append(n.topic, "k", "{}")
			n.until(isPublished)
			n.produces()
		},
		mend: elsewhere, do: "it was stopped",
	},
	{
		name: "the disk of Postgres is full", check: "disk", says: "Postgres is full",
		alert: "ConsumerStalled",
		stage: func(n *night) {
			disk := n.small()
			n.relay(n.db.Pool, relay.Config{})
			n.worker(inbox.Config{}, applies)
			n.append(n.topic, "k", "{}")
			n.until("select exists (select from inbox_progress where from_offset > 0)")
			n.produces()
			n.outside = fillUp(n, disk)
		},
		mend: elsewhere, do: "room was made",
	},
	{
		name: "a broker is away, and a topic wants all its replicas in sync", check: "topic " + theTopic,
		says:  "of 3 replicas are in sync",
		alert: "RelayOutage",
		stage: func(n *night) {
			n.own()
			own := kafkatest.NewCluster(n.t, 3)
			n.brokers = own.Brokers()
			n.topic = kafkatest.TopicAt(n.t, n.brokers, 2, map[string]string{"min.insync.replicas": "3"})
			n.relay(n.db.Pool, relay.Config{Name: "relay-1"})
			n.append(n.topic, "k", "{}")
			n.until(isPublished)
			n.produces()
			own.Kill(2)
			n.outside = func() { setTopic(n, "min.insync.replicas", "2") }
		},
		mend: elsewhere, do: "it wants two",
	},
	{
		name: "an ALTER TABLE waits behind a long reader, and all others wait for it", check: thisDatabase,
		says:  "wants an ACCESS EXCLUSIVE lock on outbox_event",
		alert: "RelayOutage",
		stage: func(n *night) {
			n.own()
			n.pool = n.waitsShort(n.db.URL)
			n.relay(n.db.Pool, relay.Config{})
			n.append(n.topic, "k", "{}")
			n.until(isPublished)
			n.produces()
			reader, alters := n.db.Connect(n.t), n.db.Connect(n.t)
			if _, err := reader.Exec(n.t.Context(), "begin; select count(*) from outbox_event"); err != nil {
				n.t.Fatal(err)
			}
			n.runs(func(ctx context.Context) error {
				_, err := alters.Exec(ctx, "alter table outbox_event add column note text")
				return err
			})
			pgtest.AwaitBlocked(n.t, n.db, alters.PgConn().PID())
			n.outside = func() {
				n.db.Exec(n.t, "select pg_terminate_backend($1)", int32(reader.PgConn().PID()))
			}
		},
		mend: elsewhere, do: "the reader was ended",
	},
}

// produces appends twenty events a second to ten keys, as far as the database lets it.
func (n *night) produces() (stop func()) {
	topic := n.topic
	return n.runs(func(ctx context.Context) error {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
				soon, cancel := context.WithTimeout(ctx, time.Second)
				_ = appends(soon, n.db.Pool, topic, fmt.Sprint("k", i%10), "{}")
				cancel()
			}
		}
	})
}

// waitsShort is through with the limit of waits that `relay ui` has.
func (n *night) waitsShort(at string) *pgxpool.Pool {
	n.t.Helper()
	cfg, err := pgxpool.ParseConfig(at)
	if err != nil {
		n.t.Fatal(err)
	}
	doctor.LimitWaits(cfg)
	pool, err := pgxpool.NewWithConfig(n.t.Context(), cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(pool.Close)
	return pool
}

// small gives the night a server whose tables are on a small disk.
func (n *night) small() (disk string) {
	t := n.t
	t.Helper()
	n.own()
	disk = filepath.Join(n.server.Dir(), "disk")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs", disk).
		CombinedOutput(); err != nil {
		t.Skipf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", disk).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	account, err := child.Unprivileged()
	if err == nil {
		err = account.Own(disk)
	}
	if err != nil {
		t.Fatal(err)
	}
	n.db.Pool.Reset()
	name := n.db.Pool.Config().ConnConfig.Database
	admin := pgtest.Pool(t, n.server.URL())
	for _, sql := range []string{
		"create tablespace small location '" + disk + "'", "alter database " + name + " set tablespace small",
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return disk
}

// fillUp leaves no room on a disk, until room is called.
func fillUp(n *night, disk string) (room func()) {
	n.t.Helper()
	path := filepath.Join(disk, "rest")
	rest, err := os.Create(path)
	if err != nil {
		n.t.Fatal(err)
	}
	for some := make([]byte, 4096); err == nil; {
		_, err = rest.Write(some)
	}
	_ = rest.Close()
	if !strings.Contains(err.Error(), "no space left") {
		n.t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			n.t.Fatal(err)
		}
	}
}

// TestNightShiftHealthy looks at systems in which nothing is wrong: the overview never says that something is.
func TestNightShiftHealthy(t *testing.T) {
	if os.Getenv(envNightShift) == "" {
		t.Skip(envNightShift + " names no document: make nightshift")
	}
	kafkatest.RequireReal(t)
	for _, c := range []struct {
		name, says string
		stage      func(*night)
	}{
		{"all moves", "Everything moves.", func(n *night) {
			n.relay(n.db.Pool, relay.Config{})
			n.worker(inbox.Config{}, applies)
			n.produces()
			n.until("select exists (select from inbox_progress where from_offset > 0)")
		}},
		{"nothing comes", "Nothing waits.", func(n *night) {
			n.relay(n.db.Pool, relay.Config{})
			n.worker(inbox.Config{}, applies)
			n.append(n.topic, "k", "{}")
			n.until("select exists (select from inbox_progress where from_offset > 0)")
		}},
		{"a backlog of an hour drains", "", func(n *night) {
			n.db.Exec(n.t, `insert into outbox_event (topic, key, type, payload, created_at)
				select $1, 'k' || g % 1000, 'T', '{}', now() - interval '1 hour' from generate_series(1, 400000) g`,
				n.topic)
			n.relay(n.db.Pool, relay.Config{ClaimEvents: 100, Pumps: 1})
			n.until("select exists (select from relay_member where acked_at is not null)")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNight(t)
			n.own()
			c.stage(n)
			n.openOverview()
			n.patiently("what the doctor finds", `!!document.querySelector("article.finding")`)
			n.presses("Acknowledge", "one replica", false)
			n.fill("details[open] input[name=reason]", "the tests have one broker")
			n.presses("It is known", "", true)
			n.open("/")
			n.looks(90*time.Second, c.says)
		})
	}
}

// TestNightShiftUnread: what the pages' role may not read is not known, and never well.
func TestNightShiftUnread(t *testing.T) {
	if os.Getenv(envNightShift) == "" {
		t.Skip(envNightShift + " names no document: make nightshift")
	}
	kafkatest.RequireReal(t)
	n := newNight(t)
	n.own()
	n.worker(inbox.Config{}, applies)
	n.pool = n.through(n.role(""))
	n.db.Exec(t, `do $$ declare one text; begin
		for one in select c.oid::regclass from pg_class c where c.relname ~ '^inbox' and c.relkind in ('r', 'p') loop
			execute 'revoke all on ' || one || ' from `+n.pool.Config().ConnConfig.User+`';
		end loop; end $$`)
	n.openOverview()
	n.patiently("named", `document.querySelector("h1").innerText.includes("not known: the inbox, which this role may")`)
	t.Log(n.text())
}

// looks for so long that nothing is red, and returns when the overview says so at the end.
func (n *night) looks(long time.Duration, says string) {
	n.t.Helper()
	end := time.After(long)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for open := true; open; {
		var red string
		n.js(`[...document.querySelectorAll("main .fail")].map(e => e.innerText).join("\n")`, &red)
		if red != "" {
			n.t.Fatalf("red:\n%s\n%s", red, n.text())
		}
		select {
		case <-tick.C:
		case <-end:
			open = false
		}
	}
	n.t.Log(n.text())
	n.patiently(says, `document.querySelector("h1").innerText.startsWith(`+quote(says)+`)`)
}
