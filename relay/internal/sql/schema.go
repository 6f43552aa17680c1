package sql

import (
	"sync"

	"github.com/effectonce/effectonce/internal/pgschema"
)

// Schema expands statements for one schema. Its methods may be called from several goroutines.
type Schema struct {
	name     string
	prefix   string
	expanded sync.Map // by the statement
}

// For returns the schema of that name; an empty name means the connection's search_path.
func For(schema string) (*Schema, error) {
	prefix, err := pgschema.Prefix(schema)
	if err != nil {
		return nil, err
	}
	return &Schema{name: schema, prefix: prefix}, nil
}

// Name returns the schema's name; "" for the search_path.
func (s *Schema) Name() string { return s.name }

// Expand returns the statement with the schema's name.
func (s *Schema) Expand(statement string) string {
	done, ok := s.expanded.Load(statement)
	if !ok {
		done, _ = s.expanded.LoadOrStore(statement, pgschema.Expand(statement, s.prefix))
	}
	return done.(string)
}
