// Package service is what every long-running program of this module needs around its work: settings from flags,
// variables and files, a logger, signals, and a listener with health and metrics.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// Logger makes a logger that writes lines to w. format is "text" or "json"; level is "debug", "info", "warn" or
// "error". Anything else is an error that says so.
func Logger(w io.Writer, format, level string) (*slog.Logger, error) {
	// JSON would show durations as nanoseconds, and lines of both formats should look the same.
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

// Signals returns a context that ends at the first SIGINT or SIGTERM. At a SIGINT after that it calls again, which is
// expected to end the process: somebody at the keyboard does not want to wait for the drain. Another SIGTERM changes
// nothing: supervisors send it to a process and to its group, and again while they wait; what they want at once they do
// with SIGKILL. stop gives the signals back and waits for the goroutine that listens; call it before the program goes
// on to anything else.
func Signals(parent context.Context, again func(os.Signal)) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	// Room for more than one: a signal that finds the channel full is dropped.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	stopped, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for first := true; ; first = false {
			select {
			case <-stopped:
				return
			case s := <-signals:
				if !first && s == os.Interrupt {
					again(s)
					return
				}
				cancel()
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(stopped)
		<-gone
		cancel()
	}
}

// The exit codes of Main.
const (
	CodeOK     = 0 // clean, also after a signal
	CodeFailed = 1 // run returned an error
	CodeUsage  = 2 // the error is a [UsageError]
	CodeForced = 5 // a second SIGINT ended the process at once
)

// Main runs a program until it is done or a signal ends ctx, prints its error to stderr, and returns the exit code. An
// error that is only the end of ctx counts as clean. A second SIGINT exits at once with CodeForced.
func Main(run func(ctx context.Context) error) (code int) {
	ctx, stop := Signals(context.Background(), func(os.Signal) { os.Exit(CodeForced) })
	defer stop()
	err := run(ctx)
	if err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return CodeOK
	}
	fmt.Fprintln(os.Stderr, err)
	if _, ok := errors.AsType[*UsageError](err); ok {
		return CodeUsage
	}
	return CodeFailed
}

// UsageError is a wrong command line or setting: the program did nothing, and says what to change.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *UsageError) Unwrap() error { return e.Err }

// Usage makes a UsageError as fmt.Errorf makes an error.
func Usage(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }
