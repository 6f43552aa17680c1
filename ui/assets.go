package ui

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
)

//go:embed templates/*.html static/*
var files embed.FS

// assetVersion is part of the static files' path, so that browsers may cache them without end.
var assetVersion = hashOf("static")

func hashOf(dir string) string {
	sum := sha256.New()
	_ = fs.WalkDir(files, dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			content, _ := files.ReadFile(name)
			fmt.Fprintf(sum, "%s %d\n", name, len(content))
			sum.Write(content)
		}
		return err
	})
	return hex.EncodeToString(sum.Sum(nil))[:16]
}
