package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// text returns the value of a string expression. A part that is unknown before it runs becomes "1", which is valid for
// a topic and for a partition.
func text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil {
			return s
		}
	case *ast.BinaryExpr:
		return text(e.X) + text(e.Y)
	case *ast.ParenExpr:
		return text(e.X)
	}
	return "1"
}

var inProse = regexp.MustCompile("`relay ([a-z][^`]*)`")

// TestFindingsNameCommands: the commands in findings exist, with all their required flags.
func TestFindingsNameCommands(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../internal/doctor/*.go")
	if err != nil {
		t.Fatal(err)
	}
	env := environment{"RELAY_DATABASE_URL": "postgres://127.0.0.1:1/none", "RELAY_KAFKA_BROKERS": "127.0.0.1:1"}
	parseLine := lineParser(t, env)
	parse := func(where string, args []string) {
		t.Helper()
		if err := parseLine(args); err != nil {
			t.Errorf("%s: relay %s: %v", where, strings.Join(args, " "), err)
		}
	}
	commands, tools := 0, []string{"kafka-topics.sh", "kafka-configs.sh", "kafka-consumer-groups.sh"}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if e, ok := n.(ast.Expr); ok {
				for _, m := range inProse.FindAllStringSubmatch(text(e), -1) {
					parse(path, strings.Fields(m[1]))
				}
			}
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains([]string{"run", "runWhy", "tool"}, sel.Sel.Name) {
				return true
			}
			commands++
			args := make([]string, len(call.Args))
			for i, a := range call.Args {
				args[i] = text(a)
			}
			switch {
			case call.Ellipsis.IsValid():
				t.Errorf("%s: %s of an unknown type", path, sel.Sel.Name)
			case sel.Sel.Name == "tool" && !slices.Contains(tools, args[0]):
				t.Errorf("%s: Kafka has no tool %s", path, args[0])
			case sel.Sel.Name == "runWhy":
				parse(path, append(args, "--reason", "..."))
			case sel.Sel.Name == "run":
				parse(path, args)
			}
			return true
		})
	}
	if commands < 20 {
		t.Errorf("found %d commands in %d files", commands, len(files))
	}
}
