package worker

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/alecthomas/kong"

	"github.com/effectonce/effectonce/internal/service"
)

// Main parses a command line into flags, a pointer to a struct for kong, and runs until a signal. It is the body of an
// example's main, and returns the exit code. Every flag also has a variable: envPrefix, an underscore and its name.
func Main(flags any, name, description, listen, envPrefix string, run func(ctx context.Context, log *slog.Logger) error) int {
	parser, err := kong.New(flags, kong.Name(name), kong.Description(description), kong.Vars{"listen": listen},
		kong.DefaultEnvars(envPrefix), kong.UsageOnError())
	if err != nil {
		panic(err) // a struct tag that kong does not understand
	}
	if _, err := parser.Parse(os.Args[1:]); err != nil {
		if bad, ok := errors.AsType[*kong.ParseError](err); ok {
			_ = bad.Context.PrintUsage(true)
		}
		parser.Errorf("%s", err)
		return service.CodeUsage
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	return service.Main(func(ctx context.Context) error { return run(ctx, log) })
}
