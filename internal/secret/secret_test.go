package secret_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/secret"
)

const canary = "canary-41d8"

// hidden has a field that fmt may look into but not call.
type hidden struct{ value secret.Value }

// TestI10SecretPrintsNothing: "I10 no secret reaches a log, a metric or an error".
func TestI10SecretPrintsNothing(t *testing.T) {
	t.Parallel()
	v := secret.Of(canary)
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10.3s", "%T", "%t", "%p"} {
		for _, what := range []any{
			v, &v,
			hidden{v},
			&hidden{v},
			[]secret.Value{v},
			map[string]any{"a": v},
			struct{ V secret.Value }{v},
		} {
			fmt.Fprintf(&out, verb+"\n", what)
		}
	}
	for _, log := range []*slog.Logger{
		slog.New(slog.NewJSONHandler(&out, nil)),
		slog.New(slog.NewTextHandler(&out, nil)),
	} {
		log.Info("a", "value", v, "pointer", &v, "struct", hidden{v}, slog.Group("g", "inner", v))
	}
	encode := func(b []byte, err error) {
		if err != nil {
			t.Error(err)
		}
		out.Write(b)
	}
	encode(json.Marshal(map[string]any{"a": v, "b": &v, "c": hidden{v}, "d": struct{ V secret.Value }{v}}))
	encode(v.MarshalText())
	func() {
		defer func() { fmt.Fprint(&out, recover()) }()
		panic(fmt.Errorf("as the test wants it: %v", v))
	}()
	text := out.String()
	for _, piece := range []string{canary, "canary", fmt.Sprintf("%x", canary), fmt.Sprintf("%X", canary)} {
		if strings.Contains(text, piece) {
			t.Errorf("%s is in the output:\n%s", piece, text)
		}
	}
	if got, err := v.Reveal(); got != canary || err != nil {
		t.Errorf("revealed %q, %v", got, err)
	}
}

func TestInFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "password")
	v := secret.InFile(path)
	if _, err := v.Reveal(); !errors.Is(err, os.ErrNotExist) || !v.IsSet() {
		t.Errorf("no file: %v", err)
	}
	for _, content := range []string{"first\n", "second\r\n", " third "} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := v.Reveal(); got != strings.TrimRight(content, "\r\n") || err != nil {
			t.Errorf("%q: revealed %q, %v", content, got, err)
		}
	}
	if err := os.WriteFile(path, []byte("\ufeffhidden"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Reveal(); err == nil || !strings.Contains(err.Error(), "byte order mark") ||
		strings.Contains(err.Error(), "hidden") {
		t.Errorf("a byte order mark: %v", err)
	}
	if err := os.WriteFile(path, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Reveal(); !errors.Is(err, secret.ErrEmptyFile) || !strings.Contains(err.Error(), path) {
		t.Errorf("empty file: %v", err)
	}
	for _, zero := range []secret.Value{{}, secret.Of("")} {
		if got, err := zero.Reveal(); got != "" || err != nil || zero.IsSet() {
			t.Errorf("zero: %q, %v", got, err)
		}
	}
}
