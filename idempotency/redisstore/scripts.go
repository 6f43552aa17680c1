package redisstore

import (
	"embed"

	"github.com/redis/go-redis/v9"
)

//go:embed lua
var sources embed.FS

// scripts are sent by their hash, or whole when the server does not have them, as after a restart.
type scripts struct {
	claim, get, extend, save, finish, release, giveBack, recover *redis.Script
}

func newScripts() scripts {
	return scripts{
		claim: script("claim"), get: script("get"), extend: script("extend"), save: script("save"),
		finish: script("finish"), release: script("release"), giveBack: script("give_back"), recover: script("recover"),
	}
}

func script(name string) *redis.Script {
	return redis.NewScript(source("common") + source(name))
}

func source(name string) string {
	b, err := sources.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // impossible: the file is embedded
	}
	return string(b)
}
