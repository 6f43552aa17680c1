package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/user"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/relay/operator"
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

// operate opens the outbox for a person, and gives do so much time with it.
func (d database) operate(ctx context.Context, p *program, timeout time.Duration, name string, do func(ctx context.Context, o *operator.Operator) error) error {
	name, err := operatorName(p, name)
	if err != nil {
		return err
	}
	return d.opened(ctx, timeout, func(ctx context.Context, pool *pgxpool.Pool) error {
		o, err := operator.New(pool, d.Schema, name)
		if err != nil {
			return &service.UsageError{Err: err}
		}
		return outboxError(do(ctx, o))
	})
}

// outboxError adds what to do about an outbox that is not there.
func outboxError(err error) error {
	if wrongSchema(err) {
		return fmt.Errorf("the outbox's tables are missing or old: run `relay migrate`, or set --schema: %w", err)
	}
	return explained(err)
}

// inboxError does the same about an inbox.
func inboxError(err error) error {
	if wrongSchema(err) {
		return fmt.Errorf("the inbox's tables are missing or old: run `relay migrate --sets inbox`, or set --schema: %w", err)
	}
	return explained(err)
}

// writeList prints a list as JSON, or as a table with a line for each.
func writeList[T any](w io.Writer, asJSON bool, list []T, head string, line func(table io.Writer, v T)) error {
	if asJSON {
		return writeJSON(w, orEmpty(list))
	}
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, head)
	for _, v := range list {
		line(table, v)
	}
	return table.Flush()
}

// orEmpty makes [] of nothing, which JSON would write as null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// idOrNone is an id that may not be there.
func idOrNone(id *uuid.UUID) string {
	if id == nil {
		return "-"
	}
	return id.String()
}

func writeJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}
