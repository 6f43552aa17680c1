package wal

import (
	"errors"
	"fmt"

	"github.com/effectonce/effectonce/internal/pgerr"
)

var (
	// ErrStandby: another relay reads the WAL.
	ErrStandby = errors.New("relay: another relay reads the WAL")
	// ErrNotYet: the WAL cannot be read now, and soon can be.
	ErrNotYet = errors.New("relay: the WAL cannot be read yet")
)

// UnusableError says why the WAL cannot be read until somebody changes something.
type UnusableError struct{ Why string }

func (e *UnusableError) Error() string { return "relay: the WAL cannot be read: " + e.Why }

// explain turns what Postgres refuses into what a person can do.
func explain(err error) error {
	switch pgerr.Code(err) {
	case "42501", "28000", "28P01":
		return &UnusableError{"the role may not replicate: `alter role ... replication`, and a line for the database " +
			"in pg_hba.conf (" + err.Error() + ")"}
	case "53400":
		return &UnusableError{"the server has no room for another slot: raise max_replication_slots (" + err.Error() +
			")"}
	case pgerr.TooManyConnections: // another connection may end soon
		return fmt.Errorf("the server has no room for another connection: raise max_wal_senders or max_connections: %w",
			err)
	case "55006":
		return ErrStandby
	}
	return err
}
