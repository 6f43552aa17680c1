package foreign

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
)

// The code that docs/migrate/debezium.md shows.

// consume:begin
func stock(ctx context.Context, db *pgxpool.Pool, brokers []string, topic string, reserve inbox.Effect) error {
	in, err := inbox.New(db, "stock", inbox.Config{})
	if err != nil {
		return err
	}
	effects := inbox.Types(map[string]inbox.Effect{"OrderPlaced": reserve})
	c, err := consumer.New(in.Each(effects), brokers, []string{topic}, consumer.Config{IDHeader: "id"})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return in.Run(ctx) })
	return g.Wait()
}

// consume:end

// placeOrder is a producer before the migration.
func placeOrder(ctx context.Context, db *pgxpool.Pool, o order) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into orders (id, customer) values ($1, $2)", o.ID, o.Customer); err != nil {
			return err
		}
		payload, err := json.Marshal(o)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `insert into outbox (id, aggregatetype, aggregateid, type, payload)
			values ($1, 'order', $2, 'OrderPlaced', $3)`, uuid.New(), o.Customer, payload)
		return err
	})
}

// after:begin
func placeOrderNow(ctx context.Context, db *pgxpool.Pool, o order) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into orders (id, customer) values ($1, $2)", o.ID, o.Customer); err != nil {
			return err
		}
		e, err := event.NewJSON(event.Event{Topic: "outbox.event.order", Key: o.Customer, Type: "OrderPlaced"}, o)
		if err != nil {
			return err
		}
		e.Headers = map[string]string{"id": e.ID.String()} // for programs that read Debezium's header
		return outbox.Append(ctx, tx, e)
	})
}

// after:end

func TestDebeziumPageShowsThisCode(t *testing.T) {
	t.Parallel()
	readPage(t, "debezium.md").shows(t, "debezium_test.go", "consume", "after")
}

const (
	envDebezium   = "EFFECTONCE_TEST_DEBEZIUM" // "1": run the tests that need Debezium
	pageSlot      = "debezium"                 // on the page; the tests replace it, because they share a server
	ordersTopic   = "outbox.event.order"
	handoverTopic = "outbox.event.handover"
	// ordersTables are the tables of the program that migrates, with the columns of Debezium's outbox router.
	ordersTables = `create table orders (id text primary key, customer text not null);
		create table outbox (id uuid primary key default gen_random_uuid(), aggregatetype varchar(255) not null, aggregateid varchar(255) not null,
			type varchar(255) not null, payload jsonb)`
)

// debezium is a Kafka, a database with the outbox, and a Kafka Connect with the connector of the page.
type debezium struct {
	*kafkatest.Connect
	db      *pgtest.DB
	slot    string
	brokers []string
	config  map[string]string
}

func newDebezium(t *testing.T, flushEvery time.Duration, sets ...pgtest.Set) *debezium {
	t.Helper()
	if os.Getenv(envDebezium) != "1" {
		t.Skipf("needs Debezium, which Maven downloads the first time: set %s=1", envDebezium)
	}
	d := &debezium{db: pgtest.NewDatabase(t, sets...), brokers: kafkatest.NewCluster(t, 1).Brokers()}
	if level := pgtest.One[string](t, d.db, "show wal_level"); level != "logical" {
		t.Fatalf("the server has wal_level=%s: Debezium needs logical", level)
	}
	kafkatest.CreateTopic(t, d.brokers, ordersTopic, partitions)
	kafkatest.CreateTopic(t, d.brokers, handoverTopic, 1)
	d.db.Exec(t, ordersTables, pgx.QueryExecModeSimpleProtocol)
	d.db.Exec(t, effects)
	if err := json.Unmarshal([]byte(readPage(t, "debezium.md").blocks("json")[0]), &d.config); err != nil {
		t.Fatal(err)
	}
	server := d.db.Pool.Config().ConnConfig
	d.config["database.hostname"], d.config["database.port"] = server.Host, strconv.Itoa(int(server.Port))
	d.config["database.user"], d.config["database.dbname"] = server.User, server.Database
	d.config["poll.interval.ms"] = "10"
	d.slot = fmt.Sprintf("debezium_%d", time.Now().UnixNano())
	d.config["slot.name"] = d.slot
	var err error
	d.Connect, err = kafkatest.StartConnect(t.Context(), kafkatest.ConnectConfig{
		Brokers: d.brokers, Worker: []string{fmt.Sprintf("offset.flush.interval.ms=%d", flushEvery.Milliseconds())},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(d.LogTail())
		}
		d.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		// Drop the slot, which would prevent the drop of the database. The walsender of a killed client takes a moment
		// to end.
		for ctx.Err() == nil {
			if _, err := d.db.Pool.Exec(ctx, "select pg_drop_replication_slot(slot_name) from pg_replication_slots "+
				"where slot_name = $1 and database = current_database()", d.slot); err == nil {
				return
			}
		}
		t.Error("the replication slot is still in use")
	})
	return d
}

// connect starts the connector and waits until it reads the log.
func (d *debezium) connect(t *testing.T) {
	t.Helper()
	if err := d.Add(t.Context(), "orders", d.config); err != nil {
		t.Fatal(err)
	}
	pgtest.Await(t, "Debezium to read the log", func() (bool, error) {
		if err := d.Failure(t.Context(), "orders"); err != nil {
			return false, err
		}
		return pgtest.One[bool](t, d.db,
			`select exists (select from pg_replication_slots s join pg_stat_replication r on r.pid = s.active_pid
			where s.slot_name = $1 and r.state = 'streaming')`, d.slot), nil
	})
}

// kill kills Debezium and waits until its slot is free.
func (d *debezium) kill(t *testing.T) {
	t.Helper()
	d.Kill()
	pgtest.AwaitSQL(t, d.db, "select not active from pg_replication_slots where slot_name = $1", d.slot)
}

func (d *debezium) restart(t *testing.T) {
	t.Helper()
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.connect(t)
}

// place places the orders from, ..., to-1 of each customer.
func (d *debezium) place(t *testing.T, do func(context.Context, *pgxpool.Pool, order) error, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		for c := range customers {
			if err := do(t.Context(), d.db.Pool, order{event.NewID().String(), fmt.Sprint("c", c), n}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestDebezium: records of Debezium's outbox event router are applied once, in the order of each key, also if Debezium
// is killed before it has committed its offset and writes all records again.
func TestDebezium(t *testing.T) {
	t.Parallel()
	d := newDebezium(t, time.Hour, migrations.Inbox) // it does not commit offsets while it runs
	d.connect(t)
	start(t, func(ctx context.Context) error { return stock(ctx, d.db.Pool, d.brokers, ordersTopic, reserve) })
	d.place(t, placeOrder, 0, 20)
	if n := awaitEffects(t, d.db, d.brokers, "stock", ordersTopic, 20*customers); n != 20*customers {
		t.Errorf("%d records", n)
	}
	rows := pgtest.One[int](t, d.db,
		`select count(*) from outbox o join effect e on e.id = o.id and e.customer = o.aggregateid
			and e.payload = o.payload`)
	if rows != 20*customers {
		t.Errorf("%d effects match their row", rows)
	}
	d.kill(t)
	d.place(t, placeOrder, 20, 30)
	d.restart(t)
	records := awaitEffects(t, d.db, d.brokers, "stock", ordersTopic, 30*customers)
	t.Logf("%d records of %d rows", records, 30*customers)
	if records < 50*customers {
		t.Errorf("%d records of %d rows: want the first %d twice", records, 30*customers, 20*customers)
	}
	checkOrder(t, d.db)
}

// TestMigrateFromDebezium follows docs/migrate/debezium.md. Debezium still sends the rows that it has not read when the
// table becomes a view; the relay sends later ones. Each order is applied once, in the order of its key, and each key
// keeps its partition.
func TestMigrateFromDebezium(t *testing.T) {
	t.Parallel()
	d := newDebezium(t, 500*time.Millisecond, migrations.Outbox, migrations.Inbox)
	p := page(strings.ReplaceAll(string(readPage(t, "debezium.md")), "'"+pageSlot+"'", "'"+d.slot+"'"))
	const cut, mark, sent, stop, end = 0, 1, 2, 3, 4 // indexes of the page's SQL blocks
	d.connect(t)
	start(t, func(ctx context.Context) error { return stock(ctx, d.db.Pool, d.brokers, ordersTopic, reserve) })
	d.place(t, placeOrder, 0, 10)
	awaitEffects(t, d.db, d.brokers, "stock", ordersTopic, 10*customers)
	d.kill(t)
	d.place(t, placeOrder, 10, 20) // it has not read these when the table is renamed
	p.run(t, d.db, cut)
	d.config["table.include.list"] = "public.outbox,public.outbox_debezium"
	d.place(t, placeOrder, 20, 30) // into the view
	if n := pgtest.One[int](t, d.db, "select count(*) from outbox_event"); n != 10*customers {
		t.Fatalf("%d events wait for the relay", n)
	}
	if pgtest.One[bool](t, d.db, p.blocks("sql")[sent]) {
		t.Fatal("the page's query says that Debezium has sent everything, while it is stopped")
	}
	d.restart(t)
	pgtest.Await(t, "Debezium to have sent its part", func() (bool, error) {
		if err := d.Failure(t.Context(), "orders"); err != nil {
			return false, err
		}
		p.run(t, d.db, mark)
		return pgtest.One[bool](t, d.db, p.blocks("sql")[sent]), nil
	})
	seen := map[string]bool{}
	for _, r := range kafkatest.ReadAllAt(t, d.brokers, ordersTopic) {
		seen[r.Get("id")] = true
	}
	if old := pgtest.One[int](t, d.db, "select count(*) from outbox_debezium where aggregatetype = 'order'"); len(
		seen) != old || old != 20*customers {
		t.Fatalf("%d of Debezium's %d events are in Kafka", len(seen), old)
	}
	if err := d.Remove(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	pgtest.AwaitSQL(t, d.db, "select not active from pg_replication_slots where slot_name = $1", d.slot)
	p.run(t, d.db, stop)
	startRelay(t, d.db, d.brokers)
	for n := 30; n < 40; n += 2 { // both kinds of producers
		d.place(t, placeOrder, n, n+1)
		d.place(t, placeOrderNow, n+1, n+2)
	}
	p.run(t, d.db, end)
	d.place(t, placeOrderNow, 40, 45)
	awaitEffects(t, d.db, d.brokers, "stock", ordersTopic, 45*customers)
	checkOrder(t, d.db)
	partition := map[string]int32{}
	for _, r := range kafkatest.ReadAllAt(t, d.brokers, ordersTopic) {
		if at, known := partition[string(r.Key)]; known && at != r.Partition {
			t.Errorf("customer %s was in partition %d and is in %d", r.Key, at, r.Partition)
		}
		partition[string(r.Key)] = r.Partition
		if r.Get("id") == "" || r.Get("ce_type") != "OrderPlaced" {
			t.Errorf("record %+v lacks headers of Debezium", r)
		}
	}
}
