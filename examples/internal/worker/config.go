// Package worker is what the examples' workers have in common: flags, tables, health, and running an inbox, a consumer
// and what stands beside them until a signal comes.
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

// Config sets a worker. DatabaseURL and Brokers are required, all else has a default.
type Config struct {
	// DatabaseURL is where the worker's own tables and the inbox are: both are written in one transaction.
	DatabaseURL secret.Value
	// Password takes the place of the one in DatabaseURL, when it is set. Both are read anew for each connection from a
	// file.
	Password secret.Value
	// Plaintext accepts sslmode=disable to another machine. Default: refused.
	Plaintext bool
	// Schema holds those tables, and is made if need be. Empty: the connection's search_path.
	Schema string
	// Brokers are Kafka's addresses, host:port.
	Brokers []string
	// Topic is what to consume. Default "payments".
	Topic string
	// Group is the Kafka consumer group. Default: the worker's name, which is also the inbox's consumer name whatever
	// the group is: a new group reads the topic again, and still applies nothing twice.
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
	Instance string `name:"instance-id" shown:"(none)" help:"Name that this worker keeps over its restarts, and no other of the group has: its partitions wait for it."`
	Listen   string `default:"${listen}" help:"Address of health and metrics, off for none."`
	Migrate  bool   `default:"true" negatable:"" help:"Make the tables at start, under an advisory lock."`
	Maintain bool   `default:"true" negatable:"" help:"Make and drop the inbox's days; --no-maintain for a role that may not, where relay inbox maintain does it."`
}

// Database are the flags of every example's database.
type Database struct {
	DatabaseURL      secret.Value `required:"" placeholder:"URL" shown:"(required)" help:"Postgres of the example's own tables and of effectonce's beside them."`
	DatabasePassword secret.Value `shown:"(of the URL)" help:"Password, in place of the URL's. From a file it is read anew for each connection."`
	Plaintext        bool         `name:"database-plaintext" help:"Accept sslmode=disable to another machine: everything can be read and changed on the way."`
	Schema           string       `shown:"(search_path)" help:"Schema of those tables; made if need be."`
}

// Worker is what the flags say. Its error is a service.UsageError.
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
