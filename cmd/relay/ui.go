package main

import (
	"context"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/kafkaconn"
)

type uiCommand struct {
	database
	kafkaconn.Config `group:"Kafka:"`
	pageFlags
}

// Help is the longer text of --help.
func (*uiCommand) Help() string {
	return `Web pages that show problems, what they mean, and the actions that resolve them. They connect as the role of --database-url and can do what
that role may do: effectonce_operator of relay migrate --roles, or one that only reads. Without --kafka-brokers the lag of consumers is not shown.

Without --users and --proxy-header they are served to this machine only, and everyone on it may operate, under the name of the user of
this process. Passwords need TLS: put a proxy in front.`
}

// all: without --outbox the pages show every outbox of the list.
func (*uiCommand) all() {}

func (c *uiCommand) run(ctx context.Context, p *program) error {
	var conn *kafkaconn.Conn
	if len(c.Brokers) > 0 {
		var err error
		if conn, err = c.Config.New(kafkaTokens); err != nil {
			return &service.UsageError{Err: err}
		}
	}
	g, err := c.open(p, "", conn)
	if err != nil {
		return err
	}
	defer g.close()
	var list []namedOutbox
	if c.several {
		if list, err = c.outboxes(ctx); err != nil {
			return err
		}
	}
	if err := g.show(ctx, c.database, list); err != nil {
		return err
	}
	return g.serve(ctx)
}
