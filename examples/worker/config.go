// Package worker is what the examples' workers, ledger and email, have in common: settings, tables, and running an
// inbox, a consumer and a background task until a signal. Copy it with them.
package worker

import (
	"cmp"
	"log/slog"
	"net"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/contract"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/process"
)

// Config configures a worker. DB and Brokers are required.
type Config struct {
	// DB is the database of the worker's tables and of the inbox. Run does not close it.
	DB *pgxpool.Pool
	// Schema holds those tables; Run creates it if missing. Empty: the connection's search_path.
	Schema string
	// Brokers are Kafka's addresses, host:port.
	Brokers []string
	// Topic to consume. Default "payments".
	Topic string
	// Group is the Kafka consumer group. Default: the worker's name. The inbox's consumer name is always the worker's
	// name. A new group goes on where the database is.
	Group string
	// IDHeader is the header that carries an event's id. Default ce_id; Debezium's outbox router writes "id".
	IDHeader string
	// Listen is the address of health and metrics. Empty or "off": none.
	Listen string
	// Listener replaces Listen, for tests and the demo. Run closes it.
	Listener net.Listener
	// SkipMigrate does not create the tables; Run fails if they are missing.
	SkipMigrate bool
	// Inbox and Consumer configure those packages. Schema, Group, IDHeader and Logger above override theirs.
	Inbox    inbox.Config
	Consumer consumer.Config
	// Figures adds metrics to the Observers. Optional: [figures.Prometheus] of examples/worker/figures.
	Figures func(name string, in *inbox.Observer, c *consumer.Observer) (Figures, error)
	// Logger is for operators. Default slog.Default(). Payloads and keys are never logged.
	Logger *slog.Logger
}

// FromEnv asks for the variables of every worker: those of [process.Env.Pool] and [process.Env.Kafka]; SCHEMA, TOPIC,
// GROUP, ID_HEADER and LISTEN, which are the fields of Config; INSTANCE_ID, with which a restart does not rebalance;
// MIGRATE=false for SkipMigrate; and MAINTAIN=false, with which relay inbox maintain makes the inbox's daily
// partitions. listen is the default address.
func FromEnv(env *process.Env, listen string) Config {
	kafka := env.Kafka()
	c := Config{
		DB: env.Pool(), Brokers: kafka.Brokers, Listen: listen,
		Consumer: consumer.Config{Dial: kafka.Dial, SASL: kafka.SASL},
	}
	migrate, maintain := true, true
	env.Set("SCHEMA", &c.Schema)
	env.Set("TOPIC", &c.Topic)
	env.Set("GROUP", &c.Group)
	env.Set("ID_HEADER", &c.IDHeader)
	env.Set("LISTEN", &c.Listen)
	env.Set("INSTANCE_ID", &c.Consumer.InstanceID)
	env.Set("MIGRATE", &migrate)
	env.Set("MAINTAIN", &maintain)
	c.SkipMigrate = !migrate
	if !maintain {
		c.Inbox.MaintainEvery = -1
	}
	return c
}

func (c Config) withDefaults(name string) Config {
	c.Topic = cmp.Or(c.Topic, contract.Topic)
	c.Group = cmp.Or(c.Group, name)
	c.IDHeader = cmp.Or(c.IDHeader, event.HeaderID)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = c.Logger.With("worker", name)
	c.Inbox.Schema, c.Inbox.Logger = c.Schema, c.Logger
	c.Consumer.Group, c.Consumer.IDHeader, c.Consumer.Logger = c.Group, c.IDHeader, c.Logger
	return c
}
