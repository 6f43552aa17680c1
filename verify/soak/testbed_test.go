package soak

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/verify/history"
	"github.com/effectonce/effectonce/verify/roles"
)

// The topics. Each has its own faults, so that deviations allowed for one topic hide no bug in another.
const (
	topicMain    = "main"
	topicSecond  = "second"
	topicLimited = "limited" // refuses large events
	topicGrowing = "growing" // gets more partitions
	topicDoomed  = "doomed"  // is deleted and created again
)

var topics = map[string]int{topicMain: 6, topicSecond: 3, topicLimited: 3, topicGrowing: 2, topicDoomed: 2}

// Names of processes: schedules are drawn before the processes start.
var (
	producers       = []string{"producer-1", "producer-2", "producer-3"}
	relays          = []string{"relay-1", "relay-2", "relay-3"}
	workers         = []string{"worker-1", "worker-2"}
	spareWorker     = "worker-3" // joins in storms only
	operatorProcess = "operator"
	maintainer      = "maintainer"
)

// testbed is the state of a run.
type testbed struct {
	settings
	dir        string // histories and logs
	pg         *pgtest.Server
	disks      *disks // nil: noDisks is the reason
	noDisks    error
	address    string // of Postgres
	database   string
	admin      *pgxpool.Pool // superuser, without proxies
	kafka      *kafkatest.Cluster
	kafkaMu    sync.Mutex // Cluster is not safe for concurrent use
	pgMu       sync.Mutex // nor is Server
	proxies    *proxies
	routes     map[string]*route // from the proxies of processes to Postgres
	standby    func() (*pgtest.Server, error)
	supervisor *supervisor
	tenants    *tenants // nil: none
	rec        *history.Writer
	t          *testing.T
	held       holder
	grown      int // partitions of topicGrowing
	observed   effectCounts
}

func newTestbed(t *testing.T, s settings, faults []fault) *testbed {
	t.Helper()
	x := &testbed{
		settings: s, dir: folder(t, s), t: t, grown: topics[topicGrowing],
		observed: effectCounts{tookEffect: map[string]int{}, continued: map[string]int{}}, routes: map[string]*route{},
	}
	var err error
	if x.rec, err = history.Create(x.dir, "harness"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.rec.Close() })
	x.startPostgres(faults)
	x.startStandby(faults)
	x.kafka = kafkatest.NewCluster(t, s.brokers)
	for name, n := range topics {
		config := map[string]string{"retention.ms": "604800000"}
		if name == topicLimited {
			config["max.message.bytes"] = fmt.Sprint(roles.TooLargeBytes)
		}
		kafkatest.CreateTopic(t, x.kafka.Brokers(), name, n, config)
	}
	x.proxies = newProxies(t)
	x.supervisor = newSupervisor(t, x.dir)
	return x
}

// folder returns the directory for histories and logs; envKeep keeps that of a failed run.
func folder(t *testing.T, s settings) string {
	t.Helper()
	keep := os.Getenv(envKeep)
	if keep == "" {
		return t.TempDir()
	}
	dir, err := filepath.Abs(filepath.Join(keep, fmt.Sprintf("seed-%d-%s", s.seed, time.Now().Format("150405"))))
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("histories and logs are kept in %s", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func (x *testbed) startPostgres(faults []fault) {
	t := x.t
	t.Helper()
	server, err := pgtest.Standalone("max_connections=100", "deadlock_timeout=200ms", "max_prepared_transactions=20",
		"max_wal_size=256MB",
		"checkpoint_timeout=30s", "wal_keep_size=256MB", "log_min_messages=warning", "log_line_prefix=%m %u ")
	if err != nil {
		t.Fatal(err)
	}
	x.pg = server
	t.Cleanup(func() { x.pgMu.Lock(); defer x.pgMu.Unlock(); server.Close() })
	for _, f := range faults {
		if strings.HasPrefix(f.kind, "disk-") && x.disks == nil && x.noDisks == nil {
			x.disks, x.noDisks = newDisks(t, server)
		}
	}
	db := server.Database(t, migrations.Outbox, migrations.Inbox)
	server.Database(t) // another one, for unrelated transactions
	conn, err := pgx.Connect(t.Context(), db.AdminURL)
	if err == nil {
		err = roles.Setup(t.Context(), conn)
		if err == nil && x.follow {
			_, err = conn.Exec(t.Context(), "alter role "+roles.User(roles.Relay)+" replication")
		}
		_ = conn.Close(t.Context())
	}
	if err == nil && x.follow {
		_, err = operator.SetUpWAL(t.Context(), db.Pool, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	x.address, x.database = u.Host, strings.TrimPrefix(u.Path, "/")
	cfg, err := pgxpool.ParseConfig(db.AdminURL + "&application_name=harness")
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns, cfg.ConnConfig.ConnectTimeout = 4, 2*time.Second
	if x.admin, err = pgxpool.NewWithConfig(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.admin.Close)
}

// startStandby starts to create a standby if a fault of the run needs one.
func (x *testbed) startStandby(faults []fault) {
	if !slices.ContainsFunc(faults, func(f fault) bool { return f.kind == kindStandby }) {
		return
	}
	x.standby = sync.OnceValues(func() (*pgtest.Server, error) { return x.pg.TryStandby("standby") })
	var making sync.WaitGroup
	making.Go(func() { _, _ = x.standby() })
	x.t.Cleanup(func() {
		making.Wait()
		if s, err := x.standby(); err == nil {
			s.Close()
		}
	})
}

// addProcess starts a process behind its own proxies.
func (x *testbed) addProcess(role, name string, wanted bool, more func(cfg *roles.Config)) {
	x.routes[name] = newRoute(x.t, x.address)
	judged := pgtest.NewProxy(x.t, "postgres://"+x.routes[name].address())
	judged.Watch(func(s pgtest.Passing) *pgtest.Trap { return x.supervisor.atStatement(name, s) })
	cfg := roles.Config{
		Role: role, Name: name, Seed: x.seed, History: x.dir, Conns: 4, Brokers: x.kafka.Brokers(),
		Proxies: map[string]string{}, URL: roles.Login(role, x.proxies.add(x.t, name+"/postgres", judged.Address()),
			x.database),
	}
	cfg.Topics = slices.Sorted(maps.Keys(topics))
	for i, b := range x.kafka.Brokers() {
		cfg.Proxies[b] = x.proxies.add(x.t, fmt.Sprintf("%s/kafka-%d", name, i), b)
	}
	if more != nil {
		more(&cfg)
	}
	x.supervisor.add(cfg, wanted)
}

func (x *testbed) addProcesses() {
	jumps := []time.Duration{-30 * time.Hour, 30 * time.Hour, 20 * 24 * time.Hour}
	for i, name := range producers {
		x.addProcess(roles.Producer, name, true, func(c *roles.Config) {
			c.Rate, c.Writers, c.Keys, c.TooLarge, c.ClockOffset = max(1, x.rate/len(producers)), 4, 200, topicLimited,
				jumps[i]
		})
	}
	for _, name := range relays[:2] {
		x.addProcess(roles.Relay, name, true, func(c *roles.Config) { c.FromWAL = x.follow })
	}
	x.addProcess(roles.Relay, relays[2], true, func(c *roles.Config) { c.Conns, c.FromWAL = 1, x.follow })
	for i, name := range append(workers, spareWorker) {
		x.addProcess(roles.Worker, name, name != spareWorker, func(c *roles.Config) {
			c.FailureRate, c.Each, c.Conns, c.ByWatermark = 0.0003, i == 2, []int{6, 2, 3}[i], x.dedup == "watermark"
			c.Parallel = []int{3, 0, 2}[i]
		})
	}
	byWatermark := x.dedup == "watermark"
	x.addProcess(roles.Operator, operatorProcess, true, func(c *roles.Config) { c.ByWatermark = byWatermark })
	x.addProcess(roles.Maintainer, maintainer, true, func(c *roles.Config) {
		c.OwnerURL = roles.Login("owner", x.proxies.add(x.t, maintainer+"/owner", x.address), x.database)
	})
	x.addTenants()
}

// note writes an entry to the harness's history.
func (x *testbed) note(e history.Entry) int64 {
	n, err := x.rec.Write(e)
	if err != nil {
		x.t.Errorf("history of the harness: %v", err)
	}
	return n
}
