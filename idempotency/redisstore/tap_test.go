package redisstore_test

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"
)

// tap sees the arguments of every command that a client sends.
type tap func(args []any)

func (h tap) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h tap) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h tap) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h(slices.Clone(cmd.Args()))
		return next(ctx, cmd)
	}
}
