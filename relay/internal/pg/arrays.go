package pg

import "github.com/jackc/pgx/v5/pgtype"

// Arrays of thousands, as parameters. pgx allocates for each element of a slice that it encodes, unless the elements
// are pointers that implement its interfaces.

// Row is a row's id and its position in its table.
type Row struct {
	At pgtype.TID
	ID int64
}

// IDs is a bigint[].
type IDs []int64

// Dimensions implements pgtype.ArrayGetter.
func (a IDs) Dimensions() []pgtype.ArrayDimension { return dimension(len(a)) }

// Index implements pgtype.ArrayGetter.
func (a IDs) Index(i int) any { return (*bigint)(&a[i]) }

// IndexType implements pgtype.ArrayGetter.
func (IDs) IndexType() any { return (*bigint)(nil) }

// RowIDs is the bigint[] of the rows' ids.
type RowIDs []Row

// Dimensions implements pgtype.ArrayGetter.
func (a RowIDs) Dimensions() []pgtype.ArrayDimension { return dimension(len(a)) }

// Index implements pgtype.ArrayGetter.
func (a RowIDs) Index(i int) any { return (*bigint)(&a[i].ID) }

// IndexType implements pgtype.ArrayGetter.
func (RowIDs) IndexType() any { return (*bigint)(nil) }

// RowPlaces is the tid[] of the rows' positions.
type RowPlaces []Row

// Dimensions implements pgtype.ArrayGetter.
func (a RowPlaces) Dimensions() []pgtype.ArrayDimension { return dimension(len(a)) }

// Index implements pgtype.ArrayGetter.
func (a RowPlaces) Index(i int) any { return &a[i].At }

// IndexType implements pgtype.ArrayGetter.
func (RowPlaces) IndexType() any { return (*pgtype.TID)(nil) }

func dimension(n int) []pgtype.ArrayDimension {
	return []pgtype.ArrayDimension{{Length: int32(n), LowerBound: 1}}
}

// bigint gives its value as one.
type bigint int64

// Int64Value implements pgtype.Int64Valuer.
func (v *bigint) Int64Value() (pgtype.Int8, error) {
	return pgtype.Int8{Int64: int64(*v), Valid: true}, nil
}
