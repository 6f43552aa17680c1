// Package worker is what the examples' workers have in common: flags, tables, health, and running an inbox, a consumer and
// what stands beside them until a signal comes.
package worker

import (
	"cmp"
	"log/slog"
	"net"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/internal/contract"
	"github.com/effectonce/effectonce/inbox"
)

// Config sets a worker. DatabaseURL and Brokers are required, all else has a default.
type Config struct {
	// DatabaseURL is where the worker's own tables and the inbox are: both are written in one transaction.
	DatabaseURL string
	// Schema holds those tables, and is made if need be. Empty: the connection's search_path.
	Schema string
	// Brokers are Kafka's addresses, host:port.
	Brokers []string
	// Topic is what to consume. Default "payments".
	Topic string
	// Group is the Kafka consumer group. Default: the worker's name, which is also the inbox's consumer name whatever the
	// group is: a new group reads the topic again, and still applies nothing twice.
	Group string
	// IDHeader is the header that carries an event's id. Default ce_id; Debezium's outbox router writes "id".
	IDHeader string
	// Listen is the address of health and metrics. Empty or "off": none.
	Listen string
	// Listener takes the place of Listen: for tests and the demo, which want any free port. Run closes it.
	Listener net.Listener
	// SkipMigrate leaves the tables to somebody else; without them Run fails and says so.
	SkipMigrate bool
	// Inbox and Consumer tune what is below; Schema, Group, IDHeader and Logger above win.
	Inbox    inbox.Config
	Consumer consumer.Config
	// Logger takes what a person should know. Default slog.Default(). Payloads and keys are never in it.
	Logger *slog.Logger
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

// Flags are the command line of every worker, for kong. The variable ${listen} is the default address.
type Flags struct {
	DatabaseURL  string   `required:"" placeholder:"URL" help:"Postgres of the worker's tables and its inbox."`
	Schema       string   `help:"Schema of those tables; made if need be. Empty: the connection's search_path."`
	KafkaBrokers []string `required:"" placeholder:"HOST:PORT" help:"Kafka's addresses, separated by commas."`
	Topic        string   `default:"payments" help:"Topic to consume."`
	Group        string   `help:"Kafka consumer group. Default: the worker's name."`
	IDHeader     string   `name:"id-header" default:"ce_id" help:"Header that carries an event's id; Debezium's outbox router writes id."`
	Listen       string   `default:"${listen}" help:"Address of health and metrics, off for none."`
	Migrate      bool     `default:"true" negatable:"" help:"Make the tables at start, under an advisory lock."`
}

// Config is what the flags say.
func (f Flags) Config() Config {
	return Config{
		DatabaseURL: f.DatabaseURL, Schema: f.Schema, Brokers: f.KafkaBrokers, Topic: f.Topic, Group: f.Group,
		IDHeader: f.IDHeader, Listen: f.Listen, SkipMigrate: !f.Migrate,
	}
}
