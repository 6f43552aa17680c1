// Package worker is the common part of the examples' workers: flags, tables, health, and running an inbox, a consumer
// and a background task until a signal.
package worker

import (
	"cmp"
	"log/slog"
	"net"
	"time"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/internal/contract"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/service"
)

// Config configures a worker. DatabaseURL and Brokers are required.
type Config struct {
	// DatabaseURL is the database of the worker's tables and of the inbox.
	DatabaseURL secret.Value
	// Password takes the place of the one in DatabaseURL, when it is set. Both are read anew for each connection from a
	// file.
	Password secret.Value
	// Plaintext accepts sslmode=disable to another machine. Default: refused.
	Plaintext bool
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
	// Logger is for operators. Default slog.Default(). Payloads and keys are never logged.
	Logger *slog.Logger
}

func (c Config) database() service.Database {
	return service.Database{URL: c.DatabaseURL, Password: c.Password, AllowPlain: c.Plaintext}
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
	Database
	kafkaconn.Config
	Topic    string `default:"payments" help:"Topic to consume."`
	Group    string `shown:"(the worker's name)" help:"Kafka consumer group."`
	IDHeader string `name:"id-header" default:"ce_id" help:"Header that carries an event's id; Debezium's outbox router writes id."`
	Instance string `name:"instance-id" shown:"(none)" help:"Unique name of this worker in the group. With it, a restart does not rebalance: the partitions wait for the worker."`
	Listen   string `default:"${listen}" help:"Address of health and metrics, off for none."`
	Migrate  bool   `default:"true" negatable:"" help:"Create the tables at start, under an advisory lock."`
	Maintain bool   `default:"true" negatable:"" help:"Create and drop the inbox's daily partitions. With --no-maintain the role needs no right to, and relay inbox maintain does it."`
}

// Database are the flags of every example's database.
type Database struct {
	DatabaseURL      secret.Value `required:"" placeholder:"URL" shown:"(required)" help:"Postgres database of the example's tables and of effectonce's."`
	DatabasePassword secret.Value `shown:"(of the URL)" help:"Password, in place of the URL's. From a file it is read anew for each connection."`
	Plaintext        bool         `name:"database-plaintext" help:"Accept sslmode=disable to another machine. The network can read and change everything."`
	Schema           string       `shown:"(search_path)" help:"Schema of those tables; created if missing."`
}

// Worker returns the Config of the flags. Its error is a service.UsageError.
func (f Flags) Worker() (Config, error) {
	conn, err := f.Config.New(service.KafkaTokens)
	if err != nil {
		return Config{}, &service.UsageError{Err: err}
	}
	maintain := time.Duration(0)
	if !f.Maintain {
		maintain = -1
	}
	return Config{
		Inbox:       inbox.Config{MaintainEvery: maintain},
		DatabaseURL: f.DatabaseURL, Password: f.DatabasePassword, Plaintext: f.Plaintext, Schema: f.Schema,
		Brokers: conn.Brokers(), Topic: f.Topic, Group: f.Group, IDHeader: f.IDHeader, Listen: f.Listen,
		SkipMigrate: !f.Migrate,
		Consumer:    consumer.Config{Dial: conn.Dial, SASL: conn.SASL(), InstanceID: f.Instance},
	}, nil
}
