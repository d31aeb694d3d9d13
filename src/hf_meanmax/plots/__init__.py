"""The figures of the papers, drawn from results and recorded attentions."""
