package main

import (
	"context"

	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/service"
)

type uiCommand struct {
	database
	kafkaconn.Config
	pageFlags
}

// Help is the longer text of --help.
func (*uiCommand) Help() string {
	return `Pages for people: what is wrong, what it means, and the verbs that mend it. It connects as --database-url, and what that role may do,
the pages can do: with one that only reads they only show. Without --kafka-brokers the lag of consumers is not shown.

Without --users and --proxy-header it answers to this machine only, and whoever is on it may operate, in the name of the user of this
process. Passwords want TLS: put a proxy before it.`
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
