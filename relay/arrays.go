package relay

import "github.com/jackc/pgx/v5/pgtype"

// Arrays of thousands, as parameters. pgx allocates for each element of a slice that it encodes, unless it gets
// pointers that give the value by themselves.

// idValue gives a bigint.
type idValue int64

// Int64Value implements pgtype.Int64Valuer.
func (v *idValue) Int64Value() (pgtype.Int8, error) {
	return pgtype.Int8{Int64: int64(*v), Valid: true}, nil
}

// idList is a bigint[].
type idList []int64

func (a idList) Dimensions() []pgtype.ArrayDimension { return dimension(len(a)) }

func (a idList) Index(i int) any { return (*idValue)(&a[i]) }

func (idList) IndexType() any { return (*idValue)(nil) }

// rowIDs is the bigint[] of the rows' ids.
type rowIDs []placedRow

func (a rowIDs) Dimensions() []pgtype.ArrayDimension { return dimension(len(a)) }

func (a rowIDs) Index(i int) any { return (*idValue)(&a[i].id) }

func (rowIDs) IndexType() any { return (*idValue)(nil) }

// rowPlaces is the tid[] of the rows' places.
type rowPlaces []placedRow

func (a rowPlaces) Dimensions() []pgtype.ArrayDimension { return dimension(len(a)) }

func (a rowPlaces) Index(i int) any { return &a[i].at }

func (rowPlaces) IndexType() any { return (*pgtype.TID)(nil) }

func dimension(n int) []pgtype.ArrayDimension {
	return []pgtype.ArrayDimension{{Length: int32(n), LowerBound: 1}}
}
