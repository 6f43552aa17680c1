package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/user"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/relay"
)

// because is what every command needs that changes something: the audit keeps both.
type because struct {
	Reason   string `shown:"(required)" help:"Why, in a few words. It goes into the audit."`
	Operator string `shown:"the user of this process" help:"Who you are, for the audit."`
}

// check refuses a change without a reason before anything is connected.
func (b because) check() error {
	if b.Reason == "" {
		return service.Usage("--reason is missing: say why, for the audit")
	}
	return nil
}

// operatorName is who acts: as said, else the user of the process.
func operatorName(p *program, name string) (string, error) {
	if name == "" {
		if name = p.env("USER"); name == "" {
			if u, err := user.Current(); err == nil {
				name = u.Username
			}
		}
	}
	if name == "" {
		return "", service.Usage("--operator is missing, and this process has no user name: say who you are, for the audit")
	}
	return name, nil
}

// operator opens the database as an Operator. The caller closes the pool.
func (d database) operator(ctx context.Context, p *program, name string) (*relay.Operator, *pgxpool.Pool, error) {
	name, err := operatorName(p, name)
	if err != nil {
		return nil, nil, err
	}
	pool, err := d.pool(ctx)
	if err != nil {
		return nil, nil, err
	}
	o, err := relay.NewOperator(pool, d.Schema, name)
	if err != nil {
		pool.Close()
		return nil, nil, &service.UsageError{Err: err}
	}
	return o, pool, nil
}

// outboxError adds what to do about an outbox that is not there.
func outboxError(err error) error {
	if wrongSchema(err) {
		return fmt.Errorf("the outbox's tables are missing or old: run `relay migrate`, or set --schema: %w", err)
	}
	return explained(err)
}

func writeJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}
