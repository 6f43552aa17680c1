package worker

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/alecthomas/kong"

	"github.com/effectonce/effectonce/internal/service"
)

// Main parses the command line into flags, a pointer to a struct for kong, calls run, and returns the exit code. A
// signal ends run's ctx. Every flag also has an environment variable: envPrefix, an underscore and its name.
func Main(flags any, name, description, listen, envPrefix string,
	run func(ctx context.Context, log *slog.Logger) error,
) int {
	line := service.CommandLine{
		Name: name, Description: description, Prefix: envPrefix + "_",
		Vars: kong.Vars{"listen": listen},
	}
	parsed, err := line.Parse(flags, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return service.CodeUsage
	}
	if parsed == nil { // --help
		return service.CodeOK
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	return service.Main(func(ctx context.Context) error { return run(ctx, log) })
}
