package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/pgschema"
)

// Blocks gives out numbers that nobody else gets, by Hi/Lo: the database hands a whole block to one process, which then numbers
// without asking. It is for keys that must be short, or that people read, and that several processes make.
//
// What it costs: one statement for each size numbers, on one row by name, so allocations of a name queue for a moment; take a size
// that lasts for seconds. What it does not promise: there are gaps (a process that ends loses the rest of its block, and so does a
// lost reply), and the numbers of two processes interleave, so they say nothing about what came first. They also say to
// anybody who sees two of them how many there were between. A database restored from a backup may give numbers again: raise
// idempotency_block.next by hand before it serves.
//
// It is safe for concurrent use. Use NewBlocks.
type Blocks struct {
	db   *pgxpool.Pool
	name string
	size int64
	sql  string

	// left is the rest of the block, and who is allowed to touch it; a channel, for waiting ends with a context.
	left chan block
}

// block is what is left: next up to, without, end.
type block struct{ next, end int64 }

// NewBlocks numbers under a name, in blocks of size (at least 1). Processes that share a name share the numbers, which begin at 1;
// they may use different sizes. schema is as in Config.
func NewBlocks(db *pgxpool.Pool, schema, name string, size int) (*Blocks, error) {
	prefix, err := pgschema.Prefix(schema)
	switch {
	case err != nil:
		return nil, fmt.Errorf("pgstore: %w", err)
	case db == nil:
		return nil, errors.New("pgstore: NewBlocks needs a *pgxpool.Pool")
	case name == "" || size < 1 || size > math.MaxInt32:
		return nil, fmt.Errorf("pgstore: blocks of %d numbers under the name %q: want a name and 1 to %d", size, name, math.MaxInt32)
	}
	b := &Blocks{db: db, name: name, size: int64(size), sql: pgschema.Expand(sqlBlock, prefix), left: make(chan block, 1)}
	b.left <- block{}
	return b, nil
}

// Next returns a number that nobody has or gets. It asks the database when the block is used up, and then fails as the database
// does; the next call asks again.
func (b *Blocks) Next(ctx context.Context) (int64, error) {
	var have block
	select {
	case have = <-b.left:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	defer func() { b.left <- have }()
	if have.next == have.end {
		var first int64
		if err := b.db.QueryRow(ctx, b.sql, b.name, b.size).Scan(&first); err != nil {
			return 0, fmt.Errorf("pgstore: taking a block of numbers %q: %w", b.name, err)
		}
		have = block{first, first + b.size}
	}
	have.next++
	return have.next - 1, nil
}
