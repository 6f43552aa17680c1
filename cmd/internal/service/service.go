// Package service has what commands of this repository need beside package process: settings from flags, variables and
// files, a logger, tokens for Kafka, and /debug/pprof/.
package service

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/effectonce/effectonce/internal/usage"
)

// Logger returns a logger that writes lines to w. format is "text" or "json"; level is "debug", "info", "warn" or
// "error". Other values are an error.
func Logger(w io.Writer, format, level string) (*slog.Logger, error) {
	// JSON would show durations in nanoseconds; both formats show the same text.
	options := slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.StringValue(a.Value.Duration().String())
		}
		return a
	}}
	switch level {
	case "debug":
		options.Level = slog.LevelDebug
	case "info":
		options.Level = slog.LevelInfo
	case "warn":
		options.Level = slog.LevelWarn
	case "error":
		options.Level = slog.LevelError
	default:
		return nil, fmt.Errorf("log level %q: want debug, info, warn or error", level)
	}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, &options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, &options)), nil
	}
	return nil, fmt.Errorf("log format %q: want text or json", format)
}

// UsageError is a wrong command line or setting.
type UsageError = usage.Error

// Usage formats a UsageError, like fmt.Errorf.
func Usage(format string, args ...any) error { return usage.Errorf(format, args...) }
