package doctor

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgtls"
)

// oldestServer is the first version that the statements are written for, as server_version_num.
const oldestServer = 150000

// server is what one statement says of a Postgres server.
type server struct {
	Recovery, ReadOnly    bool
	Version               string
	Number                int
	Fsync, FullPageWrites bool
	SynchronousCommit     string
	SynchronousStandbys   string
	Wanted                int64 // standbys that a COMMIT waits for
	Autovacuum            bool
	Standbys              int64
	InSync, Hidden        int64 // standbys that are synchronous; or may be, but this role may not see it
	Encrypted             bool
	Age                   int64 // of the oldest transaction or multixact id of any database
	Failsafe              int64 // vacuum_failsafe_age
}

func readServer(ctx context.Context, db *pgxpool.Pool) (s server, err error) {
	err = db.QueryRow(ctx, queryServer).Scan(&s.Recovery, &s.ReadOnly, &s.Version, &s.Number, &s.Fsync,
		&s.FullPageWrites,
		&s.SynchronousCommit, &s.SynchronousStandbys, &s.Wanted, &s.Autovacuum, &s.Standbys, &s.InSync, &s.Hidden,
		&s.Encrypted, &s.Age, &s.Failsafe)
	return s, err
}

// others are systems that speak Postgres' protocol, by a word in their version().
var others = map[string]string{
	"CockroachDB": "It has neither advisory locks nor pg_locks and snapshots that the outbox's order stands on.",
	"-YB-": "YugabyteDB's sequences and locks are those of its nodes: ids do not rise in the order that they " +
		"are drawn.",
	"Redshift": "It has neither unique constraints that it enforces nor row locks.",
}

// postgres reports whether the server is a Postgres that holds all tables itself.
func (f *findings) postgres(ctx context.Context, db *pgxpool.Pool) bool {
	var version string
	var citus bool
	if err := db.QueryRow(ctx, queryVersion).Scan(&version, &citus); err != nil {
		f.unanswered(err)
		return false
	}
	for name, why := range others {
		if strings.Contains(version, name) {
			f.add(Fail, "postgres", version, "Not supported: "+why, "Use Postgres: docs/platforms/README.md")
			return false
		}
	}
	if !citus {
		return true
	}
	var tables string
	if err := db.QueryRow(ctx, queryDistributed).Scan(&tables); err != nil {
		f.failed("citus", err)
	} else if tables != "" {
		f.add(Fail, "citus", "distributed: "+tables, "Not supported: ids are drawn and transactions end on each "+
			"node by "+
			"itself, so order and the relay's floors do not hold.",
			"select undistribute_table(...) for each: the tables stay on the coordinator")
	}
	return true
}

// disk looks whether the disk of the tables takes a temporary file, which a role that only reads may have written.
func (f *findings) disk(ctx context.Context, db *pgxpool.Pool) {
	const check = "disk"
	var b pgx.Batch
	b.Queue(queryNextToTables)
	b.Queue(queryWrites)
	switch err := db.SendBatch(ctx, &b).Close(); {
	case pgerr.Is(err, pgerr.DiskFull):
		f.add(Fail, check, "Postgres is full: "+err.Error(), "Producers' transactions fail, and relays and workers "+
			"cannot write. When there is room, all of them go on by themselves.", "Make room on the disk of the "+
			"tables, or enlarge it. See `replication slots`, for WAL that is kept; days of outbox_archive can be "+
			"dropped. Delete no file of Postgres.")
	case pgerr.Is(err, pgerr.LimitExceeded): // temp_file_limit
		f.skip(check, err.Error())
	case err != nil:
		f.failed(check, err)
	default:
		f.ok(check, "takes a megabyte")
	}
}

// altered looks for changes of the tables after their migrations.
func (f *findings) altered(ctx context.Context, db *pgxpool.Pool, schema string) {
	var unlogged, unkeyed, publications, published string
	err := db.QueryRow(ctx, queryUnlogged, schema).Scan(&unlogged)
	if err == nil {
		err = db.QueryRow(ctx, queryUnkeyed, schema, tables).Scan(&unkeyed)
	}
	if err == nil {
		err = db.QueryRow(ctx, queryUnpublished, schema).Scan(&publications, &published)
	}
	switch {
	case err != nil:
		f.failed("altered tables", err)
	case unlogged != "":
		f.add(Fail, "altered tables", "unlogged: "+unlogged, "A crash of the server empties them, and a standby has "+
			"nothing of them: events are lost, and effects happen again.", "alter table ... set logged, for each")
	case unkeyed != "":
		f.add(Fail, "altered tables", "without its primary key, or a unique index: "+unkeyed, "Half a restore leaves "+
			"tables so. Nothing keeps an id from being taken twice: workers decide nothing.",
			"Restore the rest of the dump (pg_restore --section=post-data), or make the keys as the migrations do; "+
				"rows that are there twice by now were effects that happened twice.")
	case publications != "":
		f.add(Fail, "altered tables", publications+" publishes "+published+" without generated columns of their keys",
			"Postgres refuses to update or delete their rows (42P10): relays publish nothing.",
			"alter publication ... set (publish_generated_columns = stored), for "+publications+
				"; or leave these tables out of it")
	default:
		f.ok("altered tables", "none is unlogged, without its key, or published without a part of it")
	}
}

func (f *findings) server(s server) {
	switch {
	case s.Recovery:
		f.add(Fail, "primary", "this server is a standby (Postgres "+s.Version+")", "Relays and workers write, and a "+
			"standby's clock and locks are not the primary's.",
			"Connect to the primary; with several hosts in the URL add target_session_attrs=read-write.")
	case s.ReadOnly:
		f.add(Fail, "primary", "transactions are read-only here", "Relays and workers write.",
			"Look at default_transaction_read_only of the role and the database.")
	case s.Number < oldestServer:
		f.add(Fail, "primary", "Postgres "+s.Version, "Statements and partition maintenance are written for 15 "+
			"and newer.", "Upgrade the server; drain the outbox first.")
	default:
		f.ok("primary", "Postgres %s, a primary", s.Version)
	}
	f.durability(s)
	f.wraparound(s)
	if s.Autovacuum {
		f.ok("autovacuum", "on")
	} else {
		f.add(Fail, "autovacuum", "autovacuum or track_counts is off", "Every published event leaves a dead row: "+
			"looks for work become slower and slower.",
			"alter system set autovacuum = on; alter system set track_counts = on; select pg_reload_conf()")
	}
}

// idsLeft is how many transaction ids must be left, so that vacuum has time. Postgres warns below 40 million, and
// refuses below 3 million.
const idsLeft = 100_000_000

func (f *findings) wraparound(s server) {
	left := math.MaxInt32 - s.Age
	found := fmt.Sprintf("%d million transaction ids are left", left/1_000_000)
	const remedy = "Vacuum the database that has the oldest: select datname, age(datfrozenxid), mxid_age(datminmxid) " +
		"from pg_database. What holds vacuum back: an old snapshot, a prepared transaction, a slot."
	switch {
	case left < idsLeft:
		f.add(Fail, "wraparound", found, "Without any, Postgres takes no writes: neither events nor effects.", remedy)
	case s.Age > s.Failsafe:
		f.add(Warn, "wraparound", found, "Vacuum does nothing else by now, and is behind.", remedy)
	default:
		f.ok("wraparound", "%s", found)
	}
}

// durability examines what a crash or a failover takes back.
func (f *findings) durability(s server) {
	lacks := s.SynchronousStandbys != "" && s.InSync+s.Hidden < s.Wanted
	if lacks {
		f.add(Fail, "durability", fmt.Sprintf("a COMMIT waits for %d of the standbys %s, and %d of them are connected",
			s.Wanted, s.SynchronousStandbys, s.InSync+s.Hidden),
			"Producers and workers hang in their COMMIT, and keep their locks. A cancelled one has committed here.",
			"Bring the standby back. Only if a failover may lose what is committed until then: alter system set "+
				"synchronous_standby_names = ''; select pg_reload_conf()")
	}
	switch {
	case !s.Fsync || !s.FullPageWrites:
		f.add(Fail, "durability", fmt.Sprintf("fsync %s, full_page_writes %s", onOff(s.Fsync), onOff(s.FullPageWrites)),
			"A crash of the machine may lose or tear what was committed: events that were published without their "+
				"business rows, or effects that are forgotten.",
			"alter system set fsync = on; alter system set full_page_writes = on; and restart the server")
	case s.SynchronousCommit == "off":
		f.add(Warn, "durability", "synchronous_commit is off by default for this role",
			"The relay and the inbox switch it on for themselves. Your own transactions may be gone after a crash, "+
				"with their events.",
			"alter role ... set synchronous_commit = on, where that matters")
	case s.SynchronousCommit == "local" && s.SynchronousStandbys != "":
		f.add(Warn, "durability", "synchronous_commit is local by default for this role",
			"Only the relay waits for a synchronous standby. After a failover events and effects may be gone.",
			"alter role ... set synchronous_commit = on, where that matters")
	case lacks:
	case s.Hidden > 0:
		f.skip("durability", "this role may not see which standbys are synchronous; grant pg_read_all_stats to it")
	case s.SynchronousStandbys == "" && s.Standbys > 0:
		f.add(Warn, "durability", fmt.Sprintf("%d standbys, none of them synchronous", s.Standbys),
			"A failover may lose commits whose events are published already, and effects whose offsets are committed.",
			"Set synchronous_standby_names if that matters across a failover; otherwise read docs/guarantees.md.")
	case s.SynchronousStandbys == "":
		f.ok("durability", "synchronous_commit %s, no standby is connected", s.SynchronousCommit)
	default:
		f.ok("durability", "synchronous_commit %s, synchronous standbys: %s", s.SynchronousCommit,
			s.SynchronousStandbys)
	}
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func (f *findings) encryption(cfg *pgx.ConnConfig) {
	if host := pgtls.PlainText(cfg); host != "" {
		f.add(Warn, "sslmode", "the connection to "+host+" may be in the clear", "Events, and the password unless it "+
			"is SCRAM's, can be read on the way, and the server can be another.",
			"Add sslmode=verify-full and sslrootcert=... to the database's URL.")
		return
	}
	f.ok("sslmode", "no host of another machine is spoken to in the clear")
}

// clock compares this machine's clock with the database's, at the middle of the quickest of three statements.
func (f *findings) clock(ctx context.Context, db *pgxpool.Pool) {
	best, difference := time.Hour, time.Duration(0)
	for range 3 {
		var theirs time.Time
		asked := time.Now()
		if err := db.QueryRow(ctx, queryClock).Scan(&theirs); err != nil {
			f.failed("clock", err)
			return
		}
		if took := time.Since(asked); took < best {
			best, difference = took, asked.Add(took/2).Sub(theirs)
		}
	}
	f.difference(difference)
}

func (f *findings) difference(d time.Duration) {
	found := fmt.Sprintf("this machine's clock differs by %v from the database's", d.Abs().Round(time.Millisecond))
	const means = "Leases go by the database's clock alone. But ids made here carry this clock's day: one that is " +
		"off by days makes ids that an inbox files wrongly or quarantines."
	switch {
	case d.Abs() > 5*time.Minute:
		f.add(Fail, "clock", found, means, "Mend the clock that is wrong (chronyc tracking, timedatectl).")
	case d.Abs() > 5*time.Second:
		f.add(Warn, "clock", found, means, "Look at both machines' time synchronisation (chronyc tracking, "+
			"timedatectl).")
	default:
		f.ok("clock", "%s", found)
	}
}

// pooler detects a pooler: it has process numbers of its own, and in transaction mode two connections that take turns
// share a backend.
func (f *findings) pooler(ctx context.Context, db *pgxpool.Pool) {
	if db.Config().MaxConns < 2 {
		f.skip("pooler", "that takes two connections, and pool_max_conns is 1")
		return
	}
	first, err := db.Acquire(ctx)
	if err != nil {
		f.failed("pooler", err)
		return
	}
	defer first.Release()
	second, err := db.Acquire(ctx)
	if err != nil {
		f.failed("pooler", err)
		return
	}
	defer second.Release()
	between, shared := false, false
	for range 3 {
		var a, b uint32
		if err = first.QueryRow(ctx, queryBackend, pgx.QueryExecModeExec).Scan(&a); err == nil {
			err = second.QueryRow(ctx, queryBackend, pgx.QueryExecModeExec).Scan(&b)
		}
		if err != nil {
			f.failed("pooler", err)
			return
		}
		between = between || a != first.Conn().PgConn().PID()
		shared = shared || a == b
	}
	mode := db.Config().ConnConfig.DefaultQueryExecMode
	f.pooling(between, shared, mode == pgx.QueryExecModeExec || mode == pgx.QueryExecModeSimpleProtocol)
}

func (f *findings) pooling(between, shared, exec bool) {
	switch {
	case shared && !exec:
		f.add(Fail, "pooler", "a pooler in transaction mode, and statements are prepared",
			"Prepared statements belong to a backend, and the next one does not know them.",
			"Add default_query_exec_mode=exec to the database's URL, set --schema, and migrate over a direct "+
				"connection.")
	case shared:
		f.add(Warn, "pooler", "a pooler in transaction mode", "It works with default_query_exec_mode=exec, which is "+
			"set. A search_path of the URL is lost: name the schema.",
			"Set --schema, and run relay migrate and relay inbox maintain over a direct connection.")
	case between:
		f.ok("pooler", "a pooler in session mode")
	default:
		f.ok("pooler", "none: the connection is direct")
	}
}
