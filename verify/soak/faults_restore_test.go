package soak

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/verify/history"
	"github.com/effectonce/effectonce/verify/roles"
)

const (
	kindRestore = "restore-tenant"
	tenantRelay = "tenant-relay" // `relay run --discover`
	// The outboxes of two tenants, in schemas of their own. The first one is restored.
	tenantRestored, tenantBeside = "tenant_restored", "tenant_beside"
	topicTenants                 = "tenants"
	// The consumers of that topic.
	tenantsByID, tenantsByMark = "tenants-by-id", "tenants-by-watermark"

	sleeping, stopped = "sleeping relay", "stopped relay"
	backedUp, working = "relay that worked at the backup", "relay that works at the restore"
)

// tenants are two outboxes that one relay serves, with their producers and consumers, which are no processes: the
// fault and its check need no deaths of theirs.
type tenants struct {
	*testbed
	db           *pgxpool.Pool
	program      string       // the relay
	restore      string       // SQL that makes the tables of tenantRestored
	appending    sync.RWMutex // locked: nothing is appended to tenantRestored
	endAppending func()
	endConsuming func()
	appended     atomic.Int64
}

func restoreKinds() []kind {
	one := kind{
		name: kindRestore, track: "tenants", checksEffect: true, shortest: 5 * time.Second, longest: 10 * time.Second,
		targets: func(settings) []string { return []string{sleeping, stopped, working} },
		begin:   func(s *testbed, f fault) (func() error, error) { return s.tenants.restoreInPlace(f) },
	}
	// Not found by the relay's check, see the package's findings: a backup of an outbox that a relay serves, if that
	// relay reserves no number after it.
	other := one
	other.name, other.asked = kindRestore+"-at-work", true
	other.targets = func(settings) []string { return []string{backedUp} }
	return []kind{one, other}
}

// tenantRelays are the relays of the tenants: none in a run without these faults.
func (s settings) tenantRelays() []string {
	if slices.ContainsFunc(restoreKinds(), func(k kind) bool { return selected(s, k) }) {
		return []string{tenantRelay}
	}
	return nil
}

// tenantTables are what was appended and applied, and the restores, with the numbering of the backup.
const tenantTables = `
create table tenants.appended (message_id uuid primary key, tenant text not null, era bigint not null,
	restored boolean not null default false, copies int not null default 0);
create table tenants.effect (consumer text not null, message_id uuid not null);
create table tenants.restore (era bigint generated always as identity, epoch text not null)`

// backUpTenant copies all tables and sequences of a schema, as pg_dump does.
const backUpTenant = `do $$ declare t name; begin
	drop schema if exists tenant_backup cascade;
	create schema tenant_backup;
	for t in select relname from pg_class where relnamespace = 'tenant_restored'::regnamespace and relkind = 'r'
		and not relispartition and relname <> 'effectonce_migration' loop
		execute format('create table tenant_backup.%I as table tenant_restored.%1$I', t);
	end loop;
	create table tenant_backup.sequences as
		select sequencename, last_value from pg_sequences where schemaname = 'tenant_restored' and last_value is not null;
end $$`

// fillTenant fills the new tables.
const fillTenant = `do $$ declare t name; s record; columns text; begin
	set local session_replication_role = replica;
	for t in select relname from pg_class where relnamespace = 'tenant_backup'::regnamespace and relkind = 'r'
		and relname <> 'sequences' loop
		select string_agg(quote_ident(attname), ', ') into columns from pg_attribute
			where attrelid = format('tenant_restored.%I', t)::regclass and attnum > 0 and not attisdropped
			and attgenerated = '';
		execute format('delete from tenant_restored.%I', t);
		execute format('insert into tenant_restored.%I (%s) overriding system value select %2$s from tenant_backup.%1$I',
			t, columns);
	end loop;
	for s in select * from tenant_backup.sequences loop
		perform setval(format('tenant_restored.%I', s.sequencename)::regclass, s.last_value);
	end loop;
end $$;
insert into tenants.restore (epoch) select outbox_id || '.' || incarnation from tenant_restored.outbox_meta;
update tenants.appended set restored = true where tenant = 'tenant_restored';
update tenants.appended set copies = copies + 1 where message_id in (
	select message_id from tenant_backup.outbox_event union all select message_id from tenant_backup.outbox_held
	union all select message_id from tenant_backup.outbox_parked)`

// addTenants starts the relay, the producers and the consumers of the tenants.
func (x *testbed) addTenants() {
	if x.tenantRelays() == nil {
		return
	}
	s := &tenants{testbed: x, program: filepath.Join(x.t.TempDir(), "relay")}
	x.tenants = s
	if out, err := exec.Command("go", "build", "-o", s.program,
		"github.com/effectonce/effectonce/cmd/relay").CombinedOutput(); err != nil {
		x.t.Fatalf("go build: %v\n%s", err, out)
	}
	cfg := x.admin.Config()
	cfg.MaxConns = 8
	var err error
	if s.db, err = pgxpool.NewWithConfig(context.Background(), cfg); err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(s.db.Close)
	s.restore = s.script(tenantRestored)
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	if err := errors.Join(
		migrations.Up(ctx, cfg.ConnConfig, migrations.Options{
			Schema: "tenants", Sets: []migrations.Set{migrations.Inbox},
		}),
		x.sql(tenantTables), x.sql(s.restore), x.sql(s.script(tenantBeside))); err != nil {
		x.t.Fatal(err)
	}
	kafkatest.CreateTopic(x.t, x.kafka.Brokers(), topicTenants, 3, map[string]string{"retention.ms": "604800000"})
	x.addProcess(roles.Relay, tenantRelay, true, func(c *roles.Config) {
		c.Role, c.Program = roles.Program, []string{s.program, "run"}
		c.Env = []string{
			"RELAY_DATABASE_URL=" + c.URL, "RELAY_KAFKA_BROKERS=" + strings.Join(c.Brokers, ","), "RELAY_LISTEN=off",
			fmt.Sprintf("RELAY_DISCOVER=select t as name, t as schema from unnest(array['%s', '%s']) t", tenantRestored,
				tenantBeside), "RELAY_LEASE=" + roles.Lease.String(), "RELAY_IDLE_AFTER=1s", "RELAY_HOLD_AFTER=2s",
			"RELAY_PUBLISH_TIMEOUT=" + roles.PublishTimeout.String(), "RELAY_DRAIN_TIMEOUT=5s", "RELAY_NAME=" + c.Name,
		}
	})
	s.startAppending()
	s.startConsuming()
}

// script returns the SQL that makes an outbox, with the rights of the roles.
func (s *tenants) script(schema string) string {
	var b strings.Builder
	opt := migrations.Options{Schema: schema, Sets: []migrations.Set{migrations.Outbox}}
	if err := errors.Join(migrations.Print(&b, opt), migrations.PrintRoles(&b, opt, "")); err != nil {
		s.t.Fatal(err)
	}
	return b.String()
}

func (s *tenants) startAppending() {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, tenant := range []string{tenantRestored, tenantBeside} {
		for range 2 {
			all.Go(func() {
				for sleep.For(ctx, 50*time.Millisecond) == nil {
					_ = s.append(tenant) // its transaction says whether it was committed
				}
			})
		}
	}
	s.endAppending = func() { cancel(); all.Wait() }
	s.t.Cleanup(s.endAppending)
}

func (s *tenants) append(tenant string) error {
	if tenant == tenantRestored {
		s.appending.RLock()
		defer s.appending.RUnlock()
	}
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error { return s.appendIn(ctx, tx, tenant) })
}

func (s *tenants) appendIn(ctx context.Context, tx pgx.Tx, tenant string) error {
	e := event.Event{
		ID: event.NewID(), Topic: topicTenants, Key: fmt.Sprintf("%s-%d", tenant, s.appended.Add(1)%7), Type: "Changed",
		ContentType: event.ContentTypeJSON, Payload: fmt.Appendf(nil, `{"canary":%q}`, roles.Canary),
	}
	if _, err := tx.Exec(ctx, `insert into tenants.appended (message_id, tenant, era)
		select $1, $2, coalesce(max(era), 0) from tenants.restore`, e.ID, tenant); err != nil {
		return err
	}
	return outbox.Appender{Schema: tenant}.Append(ctx, tx, e)
}

// startConsuming runs a consumer by id and one by watermark, whose halts are accepted.
func (s *tenants) startConsuming() {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, name := range []string{tenantsByID, tenantsByMark} {
		file, err := os.Create(filepath.Join(s.dir, name+".log"))
		if err != nil {
			s.t.Fatal(err)
		}
		log := slog.New(slog.NewTextHandler(file, nil))
		all.Go(func() {
			defer func() { _ = file.Close() }()
			for ok := true; ok; ok = sleep.For(ctx, 200*time.Millisecond) == nil {
				if err := s.consume(ctx, name, log); err != nil && ctx.Err() == nil {
					log.Error("the consumer ended", "error", err)
				}
			}
		})
	}
	all.Go(func() {
		for sleep.For(ctx, 500*time.Millisecond) == nil {
			_ = s.accept(ctx) // what failed is tried again
		}
	})
	s.endConsuming = func() { cancel(); all.Wait() }
	s.t.Cleanup(s.endConsuming)
}

func (s *tenants) consume(ctx context.Context, name string, log *slog.Logger) error {
	dedup := inbox.ByID
	if name == tenantsByMark {
		dedup = inbox.ByWatermark
	}
	in, err := inbox.New(s.db, name, inbox.Config{
		Schema: "tenants", Dedup: dedup, LockTimeout: 2 * time.Second, StatementTimeout: 10 * time.Second, Logger: log,
		EffectTimeout: roles.EffectTimeout,
	})
	if err != nil {
		return err
	}
	c, err := consumer.New(in.Batch(func(ctx context.Context, tx pgx.Tx, events []event.Event) error {
		ids := make([]string, len(events))
		for i, e := range events {
			ids[i] = e.ID.String()
		}
		_, err := tx.Exec(ctx, `insert into tenants.effect select $1, unnest($2::text[])::uuid`, name, ids)
		return err
	}), s.kafka.Brokers(), []string{topicTenants}, consumer.Config{
		Start: consumer.StartEarliest, // another consumer of the program reads the topic
		Group: name, ClientID: name, SessionTimeout: roles.SessionTimeout, HeartbeatInterval: time.Second,
		RebalanceTimeout: 8 * time.Second, DrainTimeout: 3 * time.Second, ResumeEvery: time.Second, Logger: log,
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return in.Run(ctx) })
	return g.Wait()
}

// accept accepts the numberings at which the consumer by watermark has halted.
func (s *tenants) accept(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sqlLimit)
	defer cancel()
	o, err := inboxoperator.New(s.db, "tenants", tenantsByMark, "harness")
	if err != nil {
		return err
	}
	consumers, err := o.Consumers(ctx)
	if err != nil {
		return err
	}
	for _, c := range consumers {
		for _, part := range c.Partitions {
			if c.Consumer != tenantsByMark || part.HaltedAt == nil || part.Code != inbox.CodeNewNumbering {
				continue
			}
			if _, err := o.AcceptNumbering(ctx, roles.NewNumbering(part), "soak"); err != nil {
				return err
			}
		}
	}
	return nil
}

// restoreInPlace restores a tenant from a backup of some seconds before. undo fences.
func (s *tenants) restoreInPlace(f fault) (func() error, error) {
	if err := s.backUp(f); err != nil {
		return nil, err
	}
	used, err := s.useNumbers()
	if err != nil {
		return nil, err
	}
	await(time.Now().Add(between(f.draw(), 0, 2*time.Second)))
	switch f.target {
	case sleeping, backedUp:
		if err := s.lockAsleep(); err != nil {
			return nil, err
		}
		defer s.appending.Unlock()
	case stopped:
		s.supervisor.want(tenantRelay, false)
		defer s.supervisor.want(tenantRelay, true)
		if err := s.supervisor.awaitExit(tenantRelay, stopLimit); err != nil {
			return nil, err
		}
	}
	before := s.refusals()
	if err := retry(func() error {
		return s.inTx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "set local lock_timeout = '5s'; drop schema if exists tenant_restored cascade;"+
				s.restore+fillTenant, pgx.QueryExecModeSimpleProtocol)
			return err
		})
	}); err != nil {
		return nil, errors.Join(err, s.fence())
	}
	beside, _ := s.count(`select count(*) from tenants.effect join tenants.appended using (message_id)
		where tenant = $1`, tenantBeside)
	return func() error {
		after, err := s.count(`select count(*) from tenants.effect join tenants.appended using (message_id)
			where tenant = $1`, tenantBeside)
		refused := s.refusals() - before
		s.t.Logf("%s of %s: %d effects under numbers used since the backup; refused %d times; %d effects of the other "+
			"tenant meanwhile (%v)", f.kind, f.target, used, refused, after-beside, err)
		if used > 0 && refused > 0 {
			s.tookEffect(f.kind)
			if after > beside {
				s.continued(f.kind)
			}
		}
		return s.fence()
	}, nil
}

// backUp makes the backup, with three events that wait: they may come again after the fence.
func (s *tenants) backUp(f fault) error {
	if f.target != backedUp {
		if err := s.lockAsleep(); err != nil {
			return err
		}
		defer s.appending.Unlock()
	} else if _, err := s.useNumbers(); err != nil { // each lane has reserved numbers then
		return err
	}
	return retry(func() error {
		return s.inTx(func(ctx context.Context, tx pgx.Tx) error {
			for range 3 {
				if err := s.appendIn(ctx, tx, tenantRestored); err != nil {
					return err
				}
			}
			_, err := tx.Exec(ctx, backUpTenant, pgx.QueryExecModeSimpleProtocol)
			return err
		})
	})
}

// useNumbers waits until events are applied that are appended from now on, and returns how many.
func (s *tenants) useNumbers() (used int64, err error) {
	mark, err := s.count(`select count(*) from tenants.appended where tenant = $1`, tenantRestored)
	for limit := time.Now().Add(20 * time.Second); err == nil && used == 0; {
		await(time.Now().Add(time.Second))
		used, err = s.count(`select count(*) from (select message_id from tenants.appended where tenant = $1
			order by message_id offset $2) a join tenants.effect e using (message_id)`, tenantRestored, mark+4)
		if time.Now().After(limit) {
			return 0, errors.New("no number is used")
		}
	}
	return used, err
}

// lockAsleep ends the appends, and returns when the outbox is empty and its relay has given up its lanes. The next
// event wakes a relay that died before that.
func (s *tenants) lockAsleep() error {
	for range 5 {
		s.appending.Lock()
		for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit); {
			awake, err := s.count(`select (select count(*) from tenant_restored.outbox_lane where owner is not null)
				+ (select count(*) from tenant_restored.outbox_event)`)
			if err == nil && awake == 0 {
				return nil
			}
			await(time.Now().Add(200 * time.Millisecond))
		}
		s.appending.Unlock()
		await(time.Now().Add(2 * time.Second))
	}
	return errors.New("the outbox does not sleep")
}

// inTx runs a transaction in a session of its own, whose settings it may change.
func (s *tenants) inTx(do func(ctx context.Context, tx pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*sqlLimit)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, s.db.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return do(ctx, tx) })
}

func (s *tenants) count(q string, args ...any) (n int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	return n, s.db.QueryRow(ctx, q, args...).Scan(&n)
}

// refusals returns how often the relay has said that it does not publish from the restored outbox.
func (s *tenants) refusals() int {
	return bytes.Count(s.supervisor.logs(s.t)[tenantRelay+".log"], []byte("older than what it has published"))
}

// fence fences the outbox after a restore, as `relay fence` does. It does so once: events that are published meanwhile
// would come again.
func (s *tenants) fence() error {
	o, err := operator.New(s.db, tenantRestored, "harness")
	if err != nil {
		return err
	}
	return retry(func() error {
		unfenced, err := s.count(`select count(*) from tenant_restored.outbox_meta m, tenants.restore r
			where outbox_id || '.' || incarnation = r.epoch and r.era = (select max(era) from tenants.restore)`)
		if err != nil || unfenced == 0 {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
		defer cancel()
		_, err = o.Fence(ctx, "restored by the soak")
		return err
	})
}

// tenantsLeftover are as leftoverQueries.
var tenantsLeftover = map[string]string{
	"events of tenants in the outbox": `select 1 from tenant_restored.outbox_event union all
		select 1 from tenant_beside.outbox_event`,
	"events of tenants that are held or parked": `select 1 from tenant_restored.outbox_held union all
		select 1 from tenant_restored.outbox_parked union all select 1 from tenant_beside.outbox_held union all
		select 1 from tenant_beside.outbox_parked union all select 1 from tenants.inbox_parked`,
	"halted partitions of tenants": "select 1 from tenants.inbox_progress where halted_at is not null",
}

// tenantEvent is an event of a tenant that was committed.
type tenantEvent struct {
	ID           uuid.UUID
	Tenant       string
	Restored     bool   // its outbox was restored later,
	Copies       int    // and so often from a backup in which it waited
	Before       string // the numbering of the last backup that was restored before it was appended, if any
	ByID, ByMark int    // effects

	numbers map[string]string // of its records, by numbering
}

// judge checks that nothing was published under a used number or before the fence, and counts effects. Only the
// consumer by watermark may apply an event again, under another numbering that was accepted: docs/restore.md says so.
func (s *tenants) judge(into *history.Verdict) {
	ctx, cancel := context.WithTimeout(context.Background(), dumpLimit)
	defer cancel()
	rows, err := s.db.Query(ctx, `select a.message_id, tenant, restored, copies, coalesce((select r.epoch
			from tenants.restore r where r.era = a.era and a.tenant = 'tenant_restored'), ''),
			count(e.*) filter (where e.consumer = $1), count(e.*) filter (where e.consumer = $2)
		from tenants.appended a left join tenants.effect e using (message_id) group by a.message_id`, tenantsByID,
		tenantsByMark)
	var all []*tenantEvent
	if err == nil {
		all, err = pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[tenantEvent])
	}
	if err != nil {
		s.t.Errorf("the tenants: %v", err)
		return
	}
	found := map[history.Name]*history.Violation{}
	violated := func(invariant string, name history.Name, id uuid.UUID, format string, args ...any) {
		v := found[name]
		if v == nil {
			v = &history.Violation{Invariant: invariant, Name: name}
			found[name] = v
		}
		if v.Count++; v.Count <= 5 {
			v.Examples = append(v.Examples, history.Example{
				What: fmt.Sprintf(format, args...) + " (" + kindRestore + ")", IDs: []uuid.UUID{id},
			})
		}
	}
	byID, numbers := map[string]*tenantEvent{}, map[string]string{}
	for _, e := range all {
		e.numbers = map[string]string{}
		byID[e.ID.String()] = e
	}
	for _, r := range kafkatest.ReadAllAt(s.t, s.kafka.Brokers(), topicTenants) {
		id, epoch := r.Get(event.HeaderID), r.Get(event.HeaderEpoch)
		e := byID[id]
		if e == nil {
			violated("I2", history.Phantom, uuid.Nil, "%s was not committed", id)
			continue
		}
		if e.Before != "" && incarnation(epoch) <= incarnation(e.Before) {
			violated("I5", history.StaleIncarnation, e.ID, "appended after the restore of %s, published under %s",
				e.Before, epoch)
		}
		of := r.Get(event.HeaderLane) + " " + r.Get(event.HeaderLaneSeq)
		if before := cmp.Or(e.numbers[epoch], of); before != of {
			violated("I5", history.Renumbered, e.ID, "of %s: %s and %s under %s", e.Tenant, before, of, epoch)
		}
		e.numbers[epoch] = of
		number := epoch + " " + of
		if other, used := numbers[number]; used && other != id {
			violated("I5", history.NumberReused, e.ID, "%s is the number of %s, too", number, other)
		}
		numbers[number] = id
	}
	lost, again := 0, 0
	for _, e := range all {
		is := len(e.numbers) > 0
		if e.Restored && e.Copies == 0 && !is {
			lost++ // with the restore
		}
		if (is || !e.Restored || e.Copies > 0) && min(e.ByID, e.ByMark) == 0 {
			violated("I1", history.Unapplied, e.ID, "of %s: %d effects by id, %d by watermark, published: %v",
				e.Tenant, e.ByID, e.ByMark, is)
		}
		if e.ByID > 1 || e.ByMark > max(1, len(e.numbers)) {
			violated("I3", history.SecondEffect, e.ID, "of %s, under %d numberings: %d effects by id, %d by watermark",
				e.Tenant, len(e.numbers), e.ByID, e.ByMark)
		}
		if e.ByMark > 1 {
			again++
		}
	}
	s.t.Logf("tenants: %d events, %d lost with a restore, %d applied again under an accepted numbering, "+
		"%d numbers", len(all), lost, again, len(numbers))
	for _, name := range slices.Sorted(maps.Keys(found)) {
		into.Add(found[name])
	}
}

// incarnation is the last part of a numbering's name.
func incarnation(epoch string) int {
	n, _ := strconv.Atoi(epoch[strings.LastIndexByte(epoch, '.')+1:])
	return n
}
