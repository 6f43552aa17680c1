package sqltx

import (
	"database/sql/driver"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// formats has the types that are read in binary, as in pgx's driver. All others are read as text.
var formats = pgx.QueryResultFormatsByOID{
	pgtype.BoolOID: pgx.BinaryFormatCode, pgtype.ByteaOID: pgx.BinaryFormatCode, pgtype.CIDOID: pgx.BinaryFormatCode,
	pgtype.DateOID: pgx.BinaryFormatCode, pgtype.Float4OID: pgx.BinaryFormatCode,
	pgtype.Float8OID: pgx.BinaryFormatCode, pgtype.Int2OID: pgx.BinaryFormatCode, pgtype.Int4OID: pgx.BinaryFormatCode,
	pgtype.Int8OID: pgx.BinaryFormatCode, pgtype.OIDOID: pgx.BinaryFormatCode,
	pgtype.TimestampOID: pgx.BinaryFormatCode, pgtype.TimestamptzOID: pgx.BinaryFormatCode,
	pgtype.XIDOID: pgx.BinaryFormatCode,
}

// rows is the result of a query, with its first row read.
type rows struct {
	of      pgx.Rows
	more    bool // of is at a row that Next has not returned
	columns []column
}

var (
	_ driver.RowsColumnTypeDatabaseTypeName = (*rows)(nil)
	_ driver.RowsColumnTypeScanType         = (*rows)(nil)
)

// column reads the values of a column.
type column struct {
	field pgconn.FieldDescription
	goes  reflect.Type // of ColumnType.ScanType
	read  func(src []byte) (driver.Value, error)
}

func newRows(of pgx.Rows, more bool) *rows {
	r := &rows{of: of, more: more}
	for _, field := range of.FieldDescriptions() {
		c := newColumn(of.TypeMap(), field)
		c.field = field
		r.columns = append(r.columns, c)
	}
	return r
}

func (r *rows) Columns() []string {
	names := make([]string, len(r.columns))
	for i, c := range r.columns {
		names[i] = c.field.Name
	}
	return names
}

func (r *rows) Close() error {
	r.of.Close()
	return r.of.Err()
}

func (r *rows) Next(dest []driver.Value) (err error) {
	if !r.more && !r.of.Next() {
		if err := r.of.Err(); err != nil {
			return err
		}
		return io.EOF
	}
	r.more = false
	for i, src := range r.of.RawValues() {
		dest[i] = nil
		if src == nil {
			continue
		}
		if dest[i], err = r.columns[i].read(src); err != nil {
			return fmt.Errorf("sqltx: column %q: %w", r.columns[i].field.Name, err)
		}
	}
	return nil
}

// ColumnTypeDatabaseTypeName returns the type's name in upper case, or its OID.
func (r *rows) ColumnTypeDatabaseTypeName(i int) string {
	oid := r.columns[i].field.DataTypeOID
	if t, ok := r.of.TypeMap().TypeForOID(oid); ok {
		return strings.ToUpper(t.Name)
	}
	return strconv.FormatUint(uint64(oid), 10)
}

func (r *rows) ColumnTypeScanType(i int) reflect.Type { return r.columns[i].goes }

// newColumn returns a column with the types of pgx's driver, which libraries know how to scan.
func newColumn(m *pgtype.Map, f pgconn.FieldDescription) column {
	switch f.DataTypeOID {
	case pgtype.BoolOID:
		return columnOf[bool](m, f, plain[bool])
	case pgtype.Int2OID:
		return columnOf[int16](m, f, func(n int64) (driver.Value, error) { return n, nil })
	case pgtype.Int4OID:
		return columnOf[int32](m, f, func(n int64) (driver.Value, error) { return n, nil })
	case pgtype.Int8OID:
		return columnOf[int64](m, f, func(n int64) (driver.Value, error) { return n, nil })
	case pgtype.Float4OID:
		return columnOf[float32](m, f, func(x float32) (driver.Value, error) { return float64(x), nil })
	case pgtype.Float8OID:
		return columnOf[float64](m, f, plain[float64])
	case pgtype.NumericOID:
		return columnOf[float64](m, f, plain[string]) // a string keeps all digits
	case pgtype.ByteaOID:
		return columnOf[[]byte](m, f, plain[[]byte])
	case pgtype.DateOID:
		return columnOf[time.Time](m, f, pgtype.Date.Value)
	case pgtype.TimestampOID:
		return columnOf[time.Time](m, f, pgtype.Timestamp.Value)
	case pgtype.TimestamptzOID:
		return columnOf[time.Time](m, f, pgtype.Timestamptz.Value)
	case pgtype.CIDOID, pgtype.OIDOID, pgtype.XIDOID:
		return columnOf[string](m, f, pgtype.Uint32.Value)
	case pgtype.JSONOID, pgtype.JSONBOID, pgtype.XMLOID:
		return columnOf[string](m, f, plain[[]byte])
	}
	return columnOf[string](m, f, plain[string])
}

// columnOf returns a column that scans into an S and converts it to a driver's value. Goes is the Go type that is
// reported to database/sql.
func columnOf[Goes, S any](m *pgtype.Map, f pgconn.FieldDescription, value func(S) (driver.Value, error)) column {
	plan := m.PlanScan(f.DataTypeOID, f.Format, new(S))
	return column{goes: reflect.TypeFor[Goes](), read: func(src []byte) (driver.Value, error) {
		var s S
		if err := plan.Scan(src, &s); err != nil {
			return nil, err
		}
		return value(s)
	}}
}

func plain[S any](s S) (driver.Value, error) { return s, nil }
