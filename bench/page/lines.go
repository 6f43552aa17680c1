package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Figure is a measurement: the common fields, and every other number by its name in the JSON lines.
type Figure struct {
	Case, Name string
	Turn       int
	Rate       float64
	Values     map[string]float64
}

// Goal is a promise and its measurement.
type Goal struct {
	Case   string  `json:"case"`
	What   string  `json:"goal"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Want   float64 `json:"want"`
	AtMost bool    `json:"at_most"`
	Met    bool    `json:"met"`
}

// Lines are the JSON lines of one or more runs by case, in the order of the first runs. Of several runs of a case the
// last one counts.
type Lines struct {
	Cases []Case
	About map[string]string // of the last run
}

// Case is the figures and goals of a case.
type Case struct {
	Name, Note string
	About      map[string]string
	Figures    []Figure
	Goals      []Goal
}

// Names are the alternatives of a case, in the order in which they were first measured.
func (c *Case) Names() (out []string) {
	for _, f := range c.Figures {
		if !slices.Contains(out, f.Name) {
			out = append(out, f.Name)
		}
	}
	return out
}

// counted are the values of one alternative, without the warm-up.
func (c *Case) counted(name string, get func(Figure) float64) (out []float64) {
	for _, f := range c.Figures {
		if f.Name == name && f.Turn > 0 {
			out = append(out, get(f))
		}
	}
	return out
}

// Read reads JSON lines as -json writes them.
func Read(r io.Reader) (Lines, error) {
	var all Lines
	var begun map[string]bool // cases of this run
	dec := json.NewDecoder(r)
	for number := 1; ; number++ {
		var raw json.RawMessage
		err := dec.Decode(&raw)
		if errors.Is(err, io.EOF) {
			break
		}
		var kind struct {
			About map[string]string `json:"about"`
			Case  string            `json:"case"`
			Goal  *string           `json:"goal"`
			Note  *string           `json:"note"`
		}
		if err == nil {
			err = json.Unmarshal(raw, &kind)
		}
		if err != nil {
			return all, fmt.Errorf("line %d: %w", number, err)
		}
		if kind.About != nil {
			all.About, begun = kind.About, map[string]bool{}
			continue
		}
		c := all.of(kind.Case)
		if begun == nil {
			begun = map[string]bool{}
		}
		if !begun[kind.Case] {
			*c = Case{Name: kind.Case, About: all.About}
			begun[kind.Case] = true
		}
		switch {
		case kind.Goal != nil:
			var g Goal
			err = json.Unmarshal(raw, &g)
			c.Goals = append(c.Goals, g)
		case kind.Note != nil:
			c.Note = *kind.Note
		default:
			var f Figure
			f, err = readFigure(raw)
			c.Figures = append(c.Figures, f)
		}
		if err != nil {
			return all, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if len(all.Cases) == 0 {
		return all, errors.New("the input has no figures")
	}
	return all, nil
}

func (l *Lines) of(name string) *Case {
	for i := range l.Cases {
		if l.Cases[i].Name == name {
			return &l.Cases[i]
		}
	}
	l.Cases = append(l.Cases, Case{})
	return &l.Cases[len(l.Cases)-1]
}

func readFigure(raw []byte) (Figure, error) {
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		return Figure{}, err
	}
	f := Figure{Values: map[string]float64{}}
	f.Case, _ = fields["case"].(string)
	f.Name, _ = fields["name"].(string)
	if f.Name == "" {
		return f, errors.New("neither a figure nor a goal nor a note")
	}
	for key, v := range fields {
		if n, ok := v.(float64); ok {
			f.Values[key] = n
		}
	}
	f.Turn, f.Rate = int(f.Values["turn"]), f.Values["rate"]
	return f, nil
}

// Spread returns median, min and max, or zeros without values.
func Spread(all []float64) (median, low, high float64) {
	if len(all) == 0 {
		return 0, 0, 0
	}
	s := slices.Sorted(slices.Values(all))
	median = s[len(s)/2]
	if len(s)%2 == 0 {
		median = (s[len(s)/2-1] + median) / 2
	}
	return median, s[0], s[len(s)-1]
}
