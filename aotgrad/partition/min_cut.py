from aotgrad.partition.save_all import save_all as min_cut
