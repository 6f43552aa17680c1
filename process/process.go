// Package process is what the main of a program needs around a producer, a relay or a consumer: signals and exit codes,
// health over HTTP, and settings from environment variables, with secrets from files, for Postgres and for Kafka with
// TLS and SASL. A program is
//
//	func main() { os.Exit(process.Main(run)) }
//
//	func run(ctx context.Context) error {
//		env := process.NewEnv("SHOP_")
//		db, kafka := env.Pool(), env.Kafka()
//		if err := env.Err(); err != nil {
//			return err
//		}
//		defer db.Close()
//		...
//		health := process.Health{Ready: db.Ping, Moving: process.Moving(consume), Prepare: tables}
//		return health.Run(ctx, listener, mux, consume.Run, in.Run)
//	}
//
// The programs in examples/ are complete. Nothing here is needed to use the other packages.
package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/effectonce/effectonce/internal/errtree"
	"github.com/effectonce/effectonce/internal/usage"
)

// Signals returns a context that ends at the first SIGINT, SIGTERM or SIGHUP (which a closed terminal sends). At a
// later SIGINT it calls again, which is expected to end the process: the user at the keyboard does not want to wait for
// the drain. Further SIGTERMs are ignored: supervisors send it to a process and to its group, and repeat it while they
// wait; they use SIGKILL to end a process at once. stop restores the signals and waits for the listening goroutine;
// call it before the program does anything else.
func Signals(parent context.Context, again func(os.Signal)) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	// Room for more than one: a signal that finds the channel full is dropped.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
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
				cancel(ended{s})
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(stopped)
		<-gone
		cancel(nil)
	}
}

// ended is the cause of a context that a signal has ended. errors.Is reports it as [context.Canceled].
type ended struct{ os.Signal }

func (e ended) Error() string { return context.Canceled.Error() + " by the signal " + nameOf(e.Signal) }

func (ended) Unwrap() error { return context.Canceled }

func signalOf(ctx context.Context) string {
	e, _ := errors.AsType[ended](context.Cause(ctx))
	return nameOf(e.Signal)
}

func nameOf(s os.Signal) string {
	switch s {
	case os.Interrupt:
		return "SIGINT"
	case syscall.SIGTERM:
		return "SIGTERM"
	case syscall.SIGHUP:
		return "SIGHUP"
	}
	return fmt.Sprint(s)
}

// The exit codes of Main.
const (
	CodeOK     = 0 // clean, also after a signal
	CodeFailed = 1 // run returned an error
	CodeUsage  = 2 // the error is a wrong setting: see [Env.Err]
	CodeForced = 5 // a second SIGINT ended the process at once
)

// Main runs a program until it is done or a signal ends ctx, prints its error to stderr, and returns the exit code. The
// error of an ended ctx counts as success. A second SIGINT exits at once with CodeForced. Main logs to slog.Default()
// that the program stops, and that it has stopped.
func Main(run func(ctx context.Context) error) (code int) {
	ctx, stop := Signals(context.Background(), func(os.Signal) { os.Exit(CodeForced) })
	defer stop()
	said := make(chan struct{})
	unwatch := context.AfterFunc(ctx, func() {
		defer close(said)
		slog.Info("stopping: what runs may finish", "signal", signalOf(ctx))
	})
	err := run(ctx)
	if !unwatch() {
		<-said
		defer func() { slog.Info("stopped", "signal", signalOf(ctx), "exit_code", code) }()
	}
	if err == nil || ctx.Err() != nil && onlyEnd(err) {
		return CodeOK
	}
	fmt.Fprintln(os.Stderr, err)
	if _, ok := errors.AsType[*usage.Error](err); ok {
		return CodeUsage
	}
	return CodeFailed
}

// onlyEnd reports whether an error is the end of a context, and no other error was joined to it.
func onlyEnd(err error) bool {
	return errtree.Only(err, func(leaf error) bool { return errors.Is(leaf, context.Canceled) })
}
