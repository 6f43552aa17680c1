package pg

import (
	"slices"

	"github.com/jackc/pgx/v5"
)

// Holders are the transactions that hold the lock of an insert on the table, by their names.
type Holders map[string]Holder

// Holder is one of them. The name of a prepared transaction may change; an id, if there is one, stays.
type Holder struct {
	Prepared bool
	XID      string
}

// ReadHolders reads the rows of sql.Holders.
func ReadHolders(to *Holders) func(rows pgx.Rows) error {
	return func(rows pgx.Rows) error {
		all := Holders{}
		var name string
		var h Holder
		_, err := pgx.ForEachRow(rows, []any{&name, &h.Prepared, &h.XID}, func() error { all[name] = h; return nil })
		*to = all
		return err
	}
}

// Keep drops the transactions that have ended. A prepared transaction in now, unless its id is in except, may be one of
// those that are gone, under its new name: it has that one's id, or one of them is not known.
func (h Holders) Keep(now Holders, except []string) {
	gone := map[string]bool{} // ids; "": one that is not known
	for name, was := range h {
		if one, still := now[name]; still {
			h[name] = one
			continue
		}
		delete(h, name)
		gone[was.XID] = true
	}
	for name, one := range now {
		maybe := gone[one.XID] || gone[""] || one.XID == "" && len(gone) > 0
		if one.Prepared && maybe && !slices.Contains(except, one.XID) {
			h[name] = one
		}
	}
}
