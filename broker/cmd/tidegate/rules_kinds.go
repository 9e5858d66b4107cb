package main

import (
	"fmt"
	"math"
	"strconv"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
)

// word is one of some fixed words, of which preset is the default.
func word[T any, S ~string](key string, preset S, field func(*T) *S, others ...S) rule[T] {
	words := []string{string(preset)}
	for _, o := range others {
		words = append(words, string(o))
	}
	return rule[T]{
		key: key, preset: string(preset), text: func(v *T) string { return string(*field(v)) },
		set: func(v *T, s string) error {
			if err := oneOf(words...)(s); err != nil {
				return err
			}
			*field(v) = S(s)
			return nil
		},
	}
}

// ladder is durations, one after another.
func ladder[T any](key string, preset backoff.Steps, field func(*T) *backoff.Steps) rule[T] {
	return rule[T]{
		key: key, preset: preset.String(), text: func(v *T) string { return field(v).String() },
		set: func(v *T, s string) error {
			steps, err := backoff.ParseSteps(s)
			if err != nil {
				return err
			}
			if len(steps) == 0 {
				return fmt.Errorf(`give a ladder of durations such as "10s 30s 1m"`)
			}
			*field(v) = steps
			return nil
		},
	}
}

// integerOrZero is a whole number, or 0 for a default that the server chooses.
func integerOrZero[T any, N int | int64](key, help string, least, most int64, field func(*T) *N) rule[T] {
	r := integer(key, "0", help, least, most, field)
	set := r.set
	r.set = func(v *T, s string) error {
		if s == "0" {
			*field(v) = 0
			return nil
		}
		if err := set(v, s); err != nil {
			return fmt.Errorf("%w, or 0 for the default", err)
		}
		return nil
	}
	return r
}

// factor is a number of at least 1.
func factor[T any](key string, preset float64, help string, field func(*T) *float64) rule[T] {
	text := func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
	return rule[T]{
		key: key, preset: text(preset), help: help, text: func(v *T) string { return text(*field(v)) },
		set: func(v *T, s string) error {
			f, err := strconv.ParseFloat(s, 64)
			if err != nil || !(f >= 1) || math.IsInf(f, 0) {
				return fmt.Errorf("give a number of 1 or more")
			}
			*field(v) = f
			return nil
		},
	}
}

func topicOrNone(name string) error {
	if name == "" {
		return nil
	}
	return tidegate.ValidateTopic(name)
}
