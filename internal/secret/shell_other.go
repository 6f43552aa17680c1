//go:build !unix

package secret

import (
	"context"
	"os/exec"
)

func shell(ctx context.Context, line string) *exec.Cmd {
	return exec.CommandContext(ctx, "cmd", "/C", line)
}
