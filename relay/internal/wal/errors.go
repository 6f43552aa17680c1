package wal

import (
	"errors"
	"fmt"

	"github.com/effectonce/effectonce/internal/pgerr"
)

var (
	// errStandby: another relay reads the WAL, or is to.
	errStandby = errors.New("relay: another relay reads the WAL")
	// errNotYet: the WAL cannot be read yet, but soon.
	errNotYet = errors.New("relay: the WAL cannot be read yet")
)

// unusableError is the reason why the WAL cannot be read until somebody changes something.
type unusableError struct{ Why string }

func (e *unusableError) Error() string { return "relay: the WAL cannot be read: " + e.Why }

// explain adds the remedy to an error of Postgres.
func explain(err error) error {
	switch pgerr.Code(err) {
	case "42501", "28000", "28P01":
		return &unusableError{"the role may not replicate: `alter role ... replication`, and a line for the database " +
			"in pg_hba.conf (" + err.Error() + ")"}
	case "53400":
		return &unusableError{"the server has no room for another slot: raise max_replication_slots (" + err.Error() +
			")"}
	case pgerr.TooManyConnections: // another connection may end soon
		return fmt.Errorf("the server has no room for another connection: raise max_wal_senders or max_connections: %w",
			err)
	case "55006":
		return errStandby
	}
	return err
}
