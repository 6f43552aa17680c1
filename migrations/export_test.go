package migrations

import (
	"context"
	"io"
	"io/fs"

	"github.com/jackc/pgx/v5"
)

// The tests of what a later version will bring run on files of their own.

func UpFrom(ctx context.Context, root fs.FS, conn *pgx.ConnConfig, opt Options) error {
	p, err := opt.plan(root)
	if err != nil {
		return err
	}
	return p.up(ctx, conn)
}

func CheckFrom(ctx context.Context, root fs.FS, db DB, opt Options) error {
	p, err := opt.plan(root)
	if err != nil {
		return err
	}
	return p.check(ctx, db)
}

func PrintPendingFrom(ctx context.Context, root fs.FS, w io.Writer, db DB, opt Options) error {
	p, err := opt.plan(root)
	if err != nil {
		return err
	}
	return p.printPending(ctx, w, db)
}

// Load returns what the loader says of root, and the relations that its files create.
func Load(root fs.FS) ([]string, error) {
	all, err := load(root)
	var creates []string
	for _, m := range all {
		creates = append(creates, m.creates...)
	}
	return creates, err
}

var Files fs.FS = files

const QueryLock = queryLock
